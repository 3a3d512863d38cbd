//! Whether the program's parts still move, for the watchdog and `/healthz`: each part gives a sign of life at every turn of its loop,
//! also when it has nothing to do; one that is silent for too long, or has ended, is named.
//!
//! Judges only, and ends nothing. Parts that cannot depend on this crate are asked how long they have been silent
//! ([`Liveness::ask`]). Called by the program's `run`.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two signs of life of a part that has nothing to do.
pub const BEAT: Duration = Duration::from_secs(5);

/// How long a part that waits for no disk and no other machine may be silent: several beats, for the processor may be wanted elsewhere.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The parts of a program. Cheap to clone; clones see the same.
#[derive(Clone)]
pub struct Liveness {
    inner: Arc<Inner>,
}

/// Tells how long parts have been silent.
type Ask = Box<dyn Fn() -> Vec<Silence> + Send + Sync>;

struct Inner {
    start: Instant,
    shutdown: CancellationToken,
    parts: Mutex<Vec<Arc<Part>>>,
    asked: Mutex<Vec<Ask>>,
}

struct Part {
    name: String,
    patience: Duration,
    start: Instant,
    /// Milliseconds from `start` to the last sign of life.
    beat: AtomicU64,
    ended: AtomicBool,
}

/// How long a part has given no sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// The part, for a person.
    pub part: String,
    /// Since its last sign of life.
    pub silent: Duration,
    /// How long it may be silent.
    pub patience: Duration,
}

/// A part's side: dropped, the part has ended.
pub struct Pulse {
    part: Arc<Part>,
}

impl Liveness {
    /// No parts yet. After `shutdown` they end one by one, and that is as it should be.
    pub fn new(shutdown: CancellationToken) -> Self {
        let inner =
            Inner { start: Instant::now(), shutdown, parts: Mutex::default(), asked: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// A part that begins now and may be silent for `patience`.
    pub fn part(&self, name: impl Into<String>, patience: Duration) -> Pulse {
        let pulse = Pulse::new(name.into(), patience, self.inner.start);
        lock(&self.inner.parts).push(pulse.part.clone());
        pulse
    }

    /// Parts that are asked at every check.
    pub fn ask(&self, silences: impl Fn() -> Vec<Silence> + Send + Sync + 'static) {
        lock(&self.inner.asked).push(Box::new(silences));
    }

    /// Whether every part moves.
    ///
    /// # Errors
    /// Those that do not, by name.
    pub fn check(&self) -> Result<(), String> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), String> {
        if self.inner.shutdown.is_cancelled() {
            return Ok(());
        }
        let mut wrong: Vec<String> = lock(&self.inner.parts).iter().filter_map(|p| p.trouble(now)).collect();
        let asked = lock(&self.inner.asked);
        wrong.extend(asked.iter().flat_map(|silences| silences()).filter_map(|silence| silence.trouble()));
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

impl Part {
    fn trouble(&self, now: Instant) -> Option<String> {
        if self.ended.load(Ordering::Relaxed) {
            return Some(format!("{} has ended", self.name));
        }
        let at = self.start.checked_add(Duration::from_millis(self.beat.load(Ordering::Relaxed)))?;
        let silent = now.saturating_duration_since(at);
        Silence { part: self.name.clone(), silent, patience: self.patience }.trouble()
    }
}

impl Silence {
    fn trouble(&self) -> Option<String> {
        let late = self.silent > self.patience;
        late.then(|| format!("{} gave no sign of life for {} s", self.part, self.silent.as_secs()))
    }
}

impl Pulse {
    fn new(name: String, patience: Duration, start: Instant) -> Self {
        let (beat, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let pulse = Self { part: Arc::new(Part { name, patience, start, beat, ended }) };
        pulse.beat();
        pulse
    }

    /// A pulse that nobody watches, for a part that is used by itself.
    pub fn unwatched() -> Self {
        Self::new(String::new(), Duration::MAX, Instant::now())
    }

    /// A sign of life.
    pub fn beat(&self) {
        let since = self.part.start.elapsed().as_millis();
        self.part.beat.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Gives signs of life for as long as it is polled: an arm of the `select!` in which a part waits for work. Never ends.
    pub async fn beating(&self) -> Infallible {
        loop {
            self.beat();
            tokio::time::sleep(BEAT).await;
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.part.ended.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_part_that_is_silent_too_long_is_named_and_a_beat_clears_it() {
        let liveness = Liveness::new(CancellationToken::new());
        let (http, _store) =
            (liveness.part("http", PATIENCE), liveness.part("store", Duration::from_secs(120)));
        assert_eq!(liveness.check_at(later(29)), Ok(()));
        let wrong = liveness.check_at(later(32)).unwrap_err();
        assert!(wrong.starts_with("http gave no sign of life for 3") && !wrong.contains("store"), "{wrong}");
        http.beat();
        assert_eq!(liveness.check(), Ok(()));
        assert!(liveness.check_at(later(125)).unwrap_err().contains("; store gave"));
    }

    #[test]
    fn a_part_that_died_is_named_at_once() {
        let liveness = Liveness::new(CancellationToken::new());
        let pulse = liveness.part("boots", PATIENCE);
        let died = std::thread::spawn(move || {
            let _held = pulse;
            std::panic::resume_unwind(Box::new("boom"));
        });
        assert!(died.join().is_err());
        assert_eq!(liveness.check(), Err("boots has ended".to_owned()));
    }

    #[test]
    fn a_part_that_is_asked_is_named_too() {
        let liveness = Liveness::new(CancellationToken::new());
        let silent = Arc::new(AtomicU64::new(1));
        let seen = silent.clone();
        liveness.ask(move || {
            let silent = Duration::from_secs(seen.load(Ordering::Relaxed));
            vec![Silence { part: "dhcp-br0".to_owned(), silent, patience: PATIENCE }]
        });
        assert_eq!(liveness.check(), Ok(()));
        silent.store(31, Ordering::Relaxed);
        assert_eq!(liveness.check(), Err("dhcp-br0 gave no sign of life for 31 s".to_owned()));
    }

    #[test]
    fn the_end_of_parts_in_a_shutdown_is_no_trouble() {
        let shutdown = CancellationToken::new();
        let liveness = Liveness::new(shutdown.clone());
        drop(liveness.part("http", PATIENCE));
        assert!(liveness.check().is_err());
        shutdown.cancel();
        assert_eq!(liveness.check(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_waits_for_work_beats_and_one_that_hangs_in_its_work_does_not() {
        let liveness = Liveness::new(CancellationToken::new());
        let pulse = liveness.part("http", PATIENCE);
        // Time stands still for the part's beat, so that each one is seen.
        let beaten = || pulse.part.beat.swap(u64::MAX / 4, Ordering::Relaxed) != u64::MAX / 4;
        assert!(beaten());
        tokio::select! {
            never = pulse.beating() => match never {},
            () = tokio::time::sleep(PATIENCE) => {}
        }
        assert!(beaten(), "idle is not hung");
        tokio::time::sleep(PATIENCE).await;
        assert!(!beaten(), "work that does not return gives no sign");
    }
}
