//! Pure: one value that is read again after some seconds. Used by `holders`.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a value that was read counts.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The value that was read last, with the time at which its reading started.
#[derive(Debug)]
pub struct Recent<T>(Option<(Instant, Arc<T>)>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Recent<T> {
    /// Returns the value, unless it is too old.
    pub fn get(&self, now: Instant) -> Option<Arc<T>> {
        let (read, value) = self.0.as_ref()?;
        (now.saturating_duration_since(*read) < MAX_AGE).then(|| value.clone())
    }

    /// Replaces the value. `started`: the time at which its reading started.
    pub fn put(&mut self, started: Instant, value: T) -> Arc<T> {
        let value = Arc::new(value);
        self.0 = Some((started, value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_counts_for_ten_seconds_from_the_start_of_its_reading() {
        let (mut recent, start) = (Recent::default(), Instant::now());
        assert_eq!(recent.get(start), None);
        recent.put(start, 1);
        let at = |recent: &Recent<i32>, millis: u64| {
            recent.get(start + Duration::from_millis(millis)).as_deref().copied()
        };
        assert_eq!([at(&recent, 0), at(&recent, 9_999), at(&recent, 10_000)], [Some(1), Some(1), None]);
        recent.put(start + Duration::from_secs(10), 2);
        assert_eq!([at(&recent, 10_000), at(&recent, 20_000)], [Some(2), None]);
    }
}
