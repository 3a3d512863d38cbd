//! Liveness of the program's parts, for the watchdog and `/healthz`. Each part sends a pulse at every turn of
//! its loop, also when it is idle. A part that is silent for too long, or has ended, is reported by name.
//!
//! Judges only, and ends nothing. Parts that cannot depend on this crate are asked for the duration of their
//! silence ([`Liveness::ask`]). Called by the program's `run`.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lock::Lock;

/// Interval between two pulses of an idle part.
pub const PULSE_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum silence of a part that waits for no disk and no other machine:
/// several pulses, because the processor may be busy.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum silence of a part that waits for the disk or for another host. A restart would not make a busy disk faster.
pub const DISK_PATIENCE: Duration = Duration::from_secs(120);

/// The parts of a program. Cheap to clone; clones see the same.
#[derive(Clone)]
pub struct Liveness {
    inner: Arc<Inner>,
    /// Shutdown token of the parts that are added by this clone.
    of_parts: CancellationToken,
}

/// Tells how long parts have been silent.
type Ask = Box<dyn Fn() -> Vec<Silence> + Send + Sync>;

struct Inner {
    start: Instant,
    shutdown: CancellationToken,
    parts: Lock<Vec<Arc<Part>>>,
    asked: Lock<Vec<Ask>>,
}

struct Part {
    name: String,
    patience: Duration,
    start: Instant,
    shutdown: CancellationToken,
    /// Milliseconds from `start` to the last pulse.
    beat: AtomicU64,
    ended: AtomicBool,
}

/// Time since the last pulse of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// Name of the part.
    pub part: String,
    /// Time since its last pulse.
    pub silent: Duration,
    /// Maximum time without a pulse.
    pub patience: Duration,
}

/// Handle of a part. Dropping it ends the part.
pub struct Pulse {
    beat: Beat,
}

/// Liveness pulse of a part, for code deep inside a long turn. Cheap to clone, and dropping it does not end the part.
#[derive(Clone)]
pub struct Beat(Arc<Part>);

impl Liveness {
    /// Creates an empty set of parts. After `shutdown`, parts may end.
    pub fn new(shutdown: CancellationToken) -> Self {
        let of_parts = shutdown.clone();
        let inner = Inner { start: Instant::now(), shutdown, parts: Lock::default(), asked: Lock::default() };
        Self { inner: Arc::new(inner), of_parts }
    }

    /// Returns the same parts, for parts that end earlier than the program: those that are added by the returned value are not watched after
    /// `shutdown`.
    #[must_use]
    pub fn until(&self, shutdown: CancellationToken) -> Self {
        Self { inner: Arc::clone(&self.inner), of_parts: shutdown }
    }

    /// A part that begins now and may be silent for `patience`.
    pub fn part(&self, name: impl Into<String>, patience: Duration) -> Pulse {
        let pulse = Pulse::new(name.into(), patience, self.inner.start, self.of_parts.clone());
        let mut parts = self.inner.parts.lock();
        parts.retain(|part| !(part.ended.load(Ordering::Relaxed) && part.shutdown.is_cancelled()));
        parts.push(pulse.beat.0.clone());
        pulse
    }

    /// Parts that are asked at every check.
    pub fn ask(&self, silences: impl Fn() -> Vec<Silence> + Send + Sync + 'static) {
        self.inner.asked.lock().push(Box::new(silences));
    }

    /// Returns the names of the parts that are watched now.
    pub fn names(&self) -> Vec<String> {
        let parts = self.inner.parts.lock();
        let watched =
            parts.iter().filter(|part| !part.shutdown.is_cancelled() && !part.ended.load(Ordering::Relaxed));
        watched.map(|part| part.name.clone()).collect()
    }

    /// Checks that all parts send pulses.
    ///
    /// # Errors
    /// Names of the parts that do not.
    pub fn check(&self) -> Result<(), String> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), String> {
        if self.inner.shutdown.is_cancelled() {
            return Ok(());
        }
        let mut wrong: Vec<String> = self.inner.parts.lock().iter().filter_map(|p| p.trouble(now)).collect();
        let asked = self.inner.asked.lock();
        wrong.extend(asked.iter().flat_map(|silences| silences()).filter_map(|silence| silence.trouble()));
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

impl Part {
    fn trouble(&self, now: Instant) -> Option<String> {
        if self.shutdown.is_cancelled() {
            return None;
        }
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
        late.then(|| format!("{} sent no pulse for {} s", self.part, self.silent.as_secs()))
    }
}

impl Pulse {
    fn new(name: String, patience: Duration, start: Instant, shutdown: CancellationToken) -> Self {
        let (beat, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let pulse = Self { beat: Beat(Arc::new(Part { name, patience, start, shutdown, beat, ended })) };
        pulse.beat();
        pulse
    }

    /// Returns a pulse without a watcher, for a part that runs alone.
    pub fn unwatched() -> Self {
        Self::new(String::new(), Duration::MAX, Instant::now(), CancellationToken::new())
    }

    /// Name of the part.
    pub fn name(&self) -> &str {
        &self.beat.0.name
    }

    /// Sends a pulse.
    pub fn beat(&self) {
        self.beat.beat();
    }

    /// Returns a handle that beats too.
    pub fn handle(&self) -> Beat {
        self.beat.clone()
    }

    /// Sends pulses while it is polled: an arm of the `select!` in which a part waits for work. Never ends.
    pub async fn beating(&self) -> Infallible {
        self.beat.beating().await
    }
}

impl Beat {
    /// A pulse that is not watched.
    pub fn unwatched() -> Self {
        Pulse::unwatched().handle()
    }

    /// Gives one pulse.
    pub fn beat(&self) {
        let since = self.0.start.elapsed().as_millis();
        self.0.beat.store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sends pulses while it is polled. Never ends.
    pub async fn beating(&self) -> Infallible {
        loop {
            self.beat();
            tokio::time::sleep(PULSE_INTERVAL).await;
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.beat.0.ended.store(true, Ordering::Relaxed);
    }
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
            (liveness.part("http", SILENCE_TIMEOUT), liveness.part("store", Duration::from_secs(120)));
        assert_eq!(liveness.check_at(later(29)), Ok(()));
        let wrong = liveness.check_at(later(32)).unwrap_err();
        assert!(wrong.starts_with("http sent no pulse for 3") && !wrong.contains("store"), "{wrong}");
        http.beat();
        assert_eq!(liveness.check(), Ok(()));
        assert!(liveness.check_at(later(125)).unwrap_err().contains("; store sent"));
    }

    #[test]
    fn a_part_that_died_is_named_at_once() {
        let liveness = Liveness::new(CancellationToken::new());
        let pulse = liveness.part("boots", SILENCE_TIMEOUT);
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
            vec![Silence { part: "dhcp-br0".to_owned(), silent, patience: SILENCE_TIMEOUT }]
        });
        assert_eq!(liveness.check(), Ok(()));
        silent.store(31, Ordering::Relaxed);
        assert_eq!(liveness.check(), Err("dhcp-br0 sent no pulse for 31 s".to_owned()));
    }

    #[test]
    fn the_end_of_parts_in_a_shutdown_is_no_trouble() {
        let shutdown = CancellationToken::new();
        let liveness = Liveness::new(shutdown.clone());
        drop(liveness.part("http", SILENCE_TIMEOUT));
        assert!(liveness.check().is_err());
        shutdown.cancel();
        assert_eq!(liveness.check(), Ok(()));
    }

    #[test]
    fn part_that_ends_after_its_own_shutdown_is_forgotten() {
        let liveness = Liveness::new(CancellationToken::new());
        let shutdown = CancellationToken::new();
        let part = liveness.until(shutdown.clone()).part("node", SILENCE_TIMEOUT);
        assert!(liveness.check_at(later(32)).is_err(), "it is watched like any other");
        assert_eq!(liveness.names(), ["node"]);
        shutdown.cancel();
        assert_eq!(liveness.check_at(later(32)), Ok(()));
        assert_eq!(liveness.names(), [""; 0]);
        drop(part);
        let _other = liveness.part("http", SILENCE_TIMEOUT);
        assert_eq!((liveness.check(), liveness.inner.parts.lock().len()), (Ok(()), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_loop_sends_pulses_and_a_hanging_one_does_not() {
        let liveness = Liveness::new(CancellationToken::new());
        let pulse = liveness.part("http", SILENCE_TIMEOUT);
        // The clock of the part's pulse is paused, so that each one is visible.
        let beaten = || pulse.beat.0.beat.swap(u64::MAX / 4, Ordering::Relaxed) != u64::MAX / 4;
        assert!(beaten());
        tokio::select! {
            never = pulse.beating() => match never {},
            () = tokio::time::sleep(SILENCE_TIMEOUT) => {}
        }
        assert!(beaten(), "idle is not hung");
        tokio::time::sleep(SILENCE_TIMEOUT).await;
        assert!(!beaten(), "work that does not return gives no sign");
    }
}
