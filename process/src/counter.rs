//! Counters by closed sets of labels: plain atomics, written on the packet path, read at a scrape.
//!
//! Each room has its own; `metrics` shows them. Counts only.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// A closed set of words.
pub trait Label: Copy + 'static {
    /// Number of words.
    const VALUE_COUNT: usize;

    /// Returns the word at a place. None: there are fewer.
    fn at(place: usize) -> Option<Self>;

    /// Returns the label's word in `/metrics`.
    fn word(self) -> &'static str;

    /// Returns the label's index.
    fn index(self) -> usize;
}

/// Declares an enum that is a [`Label`](crate::counter::Label). With `in "name"` it is a label of this name, for a
/// [`Family`](prometheus_client::metrics::family::Family).
#[macro_export]
macro_rules! labels {
    (
        $(#[$of_all:meta])* $visible:vis enum $name:ident $(in $label:literal)?
        { $($(#[$of_one:meta])* $one:ident => $word:literal,)+ }
    ) => {
        $(#[$of_all])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $visible enum $name { $($(#[$of_one])* $one,)+ }

        impl $name {
            /// All words, in order.
            $visible const ALL: &'static [Self] = &[$(Self::$one,)+];
        }

        impl $crate::counter::Label for $name {
            const VALUE_COUNT: usize = Self::ALL.len();

            fn at(place: usize) -> Option<Self> {
                Self::ALL.get(place).copied()
            }

            fn word(self) -> &'static str {
                match self { $(Self::$one => $word,)+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }

        $(impl $crate::family::EncodeLabelSet for $name {
            fn encode(&self, encoder: &mut $crate::family::LabelSetEncoder<'_>) -> ::std::fmt::Result {
                let label = [($label, $crate::counter::Label::word(*self))];
                $crate::family::EncodeLabelSet::encode(&label, encoder)
            }
        })?
    };
}
pub use crate::labels;

/// Adds one.
pub fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The value now.
pub fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A counter for each word.
#[derive(Debug)]
pub struct By<L> {
    counts: Box<[AtomicU64]>,
    label: PhantomData<L>,
}

impl<L: Label> Default for By<L> {
    fn default() -> Self {
        Self { counts: (0..L::VALUE_COUNT).map(|_| AtomicU64::new(0)).collect(), label: PhantomData }
    }
}

impl<L: Label> By<L> {
    /// Adds one.
    pub fn one(&self, label: impl Into<L>) {
        self.counts.get(label.into().index()).into_iter().for_each(one);
    }

    /// The value now.
    pub fn get(&self, label: impl Into<L>) -> u64 {
        self.counts.get(label.into().index()).map_or(0, read)
    }

    /// Every word with its value.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        (0..L::VALUE_COUNT).filter_map(L::at).map(|label| (label.word(), self.get(label)))
    }
}

/// Gauge of a number.
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    /// Returns the current number.
    pub fn now(&self) -> u64 {
        read(&self.0)
    }

    /// Adds one.
    pub fn up(&self) {
        one(&self.0);
    }

    /// Subtracts one.
    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    labels! {
        /// Fruit.
        enum Fruit {
            /// Red.
            Apple => "apple",
            /// Yellow.
            Pear => "pear",
        }
    }

    #[test]
    fn every_word_is_there_from_the_start_and_counts_for_itself() {
        let by = By::<Fruit>::default();
        by.one(Fruit::Pear);
        by.one(Fruit::Pear);
        assert_eq!(by.all().collect::<Vec<_>>(), [("apple", 0), ("pear", 2)]);
        assert_eq!(by.get(Fruit::Apple), 0);
    }
}
