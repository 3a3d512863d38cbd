//! Work on many independent values, shared among the processors by its own threads.
//!
//! Called by `manifests` for files and by `parse` for the documents of one file, the second inside of the first. All calls share one
//! [`Budget`] of threads. A call that gets no thread does all of its work itself.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bedplate_process::lock::Lock;

/// Maximum number of concurrent threads, including the caller's: manifests must leave processor time to packets.
const MOST_THREADS: usize = 8;

/// Budget of this process.
static HELPERS: LazyLock<Budget> = LazyLock::new(|| {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    Budget::new(processors.min(MOST_THREADS).saturating_sub(1))
});

/// Number of threads that may help.
struct Budget {
    all: usize,
    free: AtomicUsize,
}

/// A thread of the budget, until it is dropped.
struct Helper<'a>(&'a Budget);

impl Budget {
    fn new(all: usize) -> Self {
        Self { all, free: AtomicUsize::new(all) }
    }

    fn take(&self) -> Option<Helper<'_>> {
        let taken = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        taken.ok().map(|_| Helper(self))
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Relaxed);
    }
}

/// Does `act` to each of `items`; fewer than `least` to a thread are not worth one.
pub(crate) fn for_each<T: Send>(items: &mut [T], least: usize, act: impl Fn(&mut T) + Sync) {
    for_each_within(&HELPERS, items, least, act);
}

fn for_each_within<T: Send>(budget: &Budget, items: &mut [T], least: usize, act: impl Fn(&mut T) + Sync) {
    let share = items.len().div_ceil(budget.all.saturating_add(1)).max(least).max(1);
    let others = items.len().div_ceil(share).saturating_sub(1);
    let parts = Lock::new(items.chunks_mut(share));
    let next = || parts.lock().next();
    let work = || {
        while let Some(part) = next() {
            part.iter_mut().for_each(&act);
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            let Some(helper) = budget.take() else { break };
            let help = move || {
                let _helper = helper;
                work();
            };
            // Without another thread the caller does the work alone.
            if thread::Builder::new().name("manifests".to_owned()).spawn_scoped(scope, help).is_err() {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_worked_on_once() {
        for helpers in [0, 1, 7] {
            for count in [0, 1, 5, 1000] {
                let mut items = vec![0_u32; count];
                let budget = Budget::new(helpers);
                for_each_within(&budget, &mut items, 3, |item| *item += 1);
                assert!(items.iter().all(|item| *item == 1), "{count}");
                assert_eq!(budget.free.into_inner(), helpers, "every thread is given back");
            }
        }
    }

    #[test]
    fn work_inside_of_work_takes_no_more_threads_than_the_budget_has() {
        let budget = Budget::new(2);
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut files = vec![vec![0_u32; 50]; 50];
        for_each_within(&budget, &mut files, 1, |documents| {
            for_each_within(&budget, documents, 1, |document| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                *document += 1;
                running.fetch_sub(1, Ordering::SeqCst);
            });
        });
        assert!(files.iter().flatten().all(|document| *document == 1));
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(budget.free.into_inner(), 2);
    }
}
