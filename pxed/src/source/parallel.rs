//! Pure: work on many values that do not need each other, shared among the processors.
//!
//! Called by `directory` for files and by `manifest` for the documents of one file.

use std::num::NonZero;
use std::thread;

/// Most threads at once: reading manifests must leave processors to the packets.
const MOST_THREADS: usize = 8;

/// Does `act` to each of `items`; fewer than `least` to a thread are not worth one.
pub(super) fn for_each<T: Send>(items: &mut [T], least: usize, act: impl Fn(&mut T) + Sync) {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let share = items.len().div_ceil(threads).max(least).max(1);
    thread::scope(|scope| {
        let mut parts = items.chunks_mut(share);
        let own = parts.next();
        for part in parts {
            scope.spawn(|| part.iter_mut().for_each(&act));
        }
        own.into_iter().flatten().for_each(&act);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_worked_on_once() {
        for count in [0, 1, 5, 1000] {
            let mut items = vec![0_u32; count];
            for_each(&mut items, 3, |item| *item += 1);
            assert!(items.iter().all(|item| *item == 1), "{count}");
        }
    }
}
