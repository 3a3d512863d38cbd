//! A mutex that ignores poisoning: a panic while the lock is held does not make every later caller panic.
//!
//! Use it only for values that are valid after each statement. A task that panics stops the program ([`tasks`](crate::tasks)), and
//! until then other tasks must still be able to drain. Not for values that are held across an await.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that one thread at a time uses.
#[derive(Debug, Default)]
pub struct Lock<T: ?Sized>(Mutex<T>);

impl<T> Lock<T> {
    /// Makes a lock around a value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Returns the value, which no other thread can hold any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Lock<T> {
    /// Locks the value. If a holder panicked, the value stays as it was at the panic.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn value_stays_usable_after_a_holder_panicked() {
        let lock = Arc::new(Lock::new(1));
        let other = Arc::clone(&lock);
        let panicked = std::thread::spawn(move || {
            let mut value = other.lock();
            *value = 2;
            std::panic::resume_unwind(Box::new("boom"));
        });
        assert!(panicked.join().is_err());
        assert_eq!(*lock.lock(), 2);
        assert_eq!(Arc::into_inner(lock).unwrap().into_inner(), 2);
    }
}
