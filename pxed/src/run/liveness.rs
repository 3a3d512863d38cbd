//! Liveness pulses of the engines' threads and of the stores; the boot path sends its own.
//!
//! Only reports; the watchdog and `/healthz` decide.

use std::sync::Arc;
use std::time::Duration;

use bedplate_dhcp::COMMIT_THREAD;
use bedplate_process::liveness::{DISK_PATIENCE, Liveness, PULSE_INTERVAL, Pulse, SILENCE_TIMEOUT, Silence};
use tokio_util::sync::CancellationToken;

use crate::store::Store;

/// Watches the threads of the DHCP engine.
pub(super) fn watch_dhcp(liveness: &Liveness, server: bedplate_dhcp::Server) {
    liveness.ask(move || server.silences().into_iter().map(|(name, silent)| dhcp(&name, silent)).collect());
}

fn dhcp(name: &str, silent: Duration) -> Silence {
    let patience = if name == COMMIT_THREAD { DISK_PATIENCE } else { SILENCE_TIMEOUT };
    Silence { part: format!("dhcp {name}"), silent, patience }
}

/// Watches the workers of the TFTP engine.
pub(super) fn watch_tftp(liveness: &Liveness, server: Arc<bedplate_tftp::server::Server>) {
    liveness.ask(move || {
        let numbered = server.silences().into_iter().enumerate();
        let silences = numbered.map(|(number, silent)| Silence {
            part: format!("tftp worker {number}"),
            silent,
            patience: SILENCE_TIMEOUT,
        });
        silences.collect()
    });
}

/// Asks the store's commit thread for an answer periodically; each answer is a pulse.
pub(super) async fn ask_store(store: Store, pulse: Pulse, shutdown: CancellationToken) {
    loop {
        let answer = tokio::select! {
            () = shutdown.cancelled() => return,
            answer = store.answers() => answer,
        };
        match answer {
            Ok(()) => pulse.beat(),
            Err(error) => tracing::error!(%error, "store does not answer"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PULSE_INTERVAL) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_that_waits_for_the_disk_may_be_silent_for_longer() {
        let check = |name, seconds| {
            let liveness = Liveness::new(CancellationToken::new());
            liveness.ask(move || vec![dhcp(name, Duration::from_secs(seconds))]);
            liveness.check()
        };
        assert_eq!(check("br0", 31), Err("dhcp br0 sent no pulse for 31 s".to_owned()));
        assert_eq!(check(COMMIT_THREAD, 31), Ok(()));
        assert_eq!(check(COMMIT_THREAD, 121), Err("dhcp commit sent no pulse for 121 s".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_store_answers_and_one_whose_asking_ended_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("pxed.redb")).unwrap();
        let liveness = Liveness::new(CancellationToken::new());
        // The paused clock runs ahead of the thread that answers, which no clock of a test waits for.
        let pulse = liveness.part("store", Duration::from_secs(3600));
        let asking = tokio::spawn(ask_store(store.clone(), pulse, CancellationToken::new()));
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        // After an hour of silence it sends a pulse again without having work.
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(3601)).await;
            while liveness.check().is_err() {
                assert!(std::time::Instant::now() < deadline, "{:?}", liveness.check());
                store.answers().await.unwrap();
                tokio::task::yield_now().await;
            }
        }
        asking.abort();
        assert!(asking.await.is_err());
        assert_eq!(liveness.check(), Err("store has ended".to_owned()));
    }
}
