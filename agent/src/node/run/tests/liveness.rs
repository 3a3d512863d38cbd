//! A step or a removal that hangs is named by the watchdog; a loop that waits for a change is not.

use bedplate_process::liveness::{Liveness, PULSE_INTERVAL, Pulse};

use super::*;

#[tokio::test(start_paused = true)]
async fn node_step_that_hangs_is_named_by_the_watchdog() {
    let world = World::new();
    let liveness = Liveness::new(CancellationToken::new());
    let patience = PULSE_INTERVAL * 4;
    let pulse: Pulse = liveness.part("node", patience);
    let agent = tokio::spawn(world.agent().run(pulse, CancellationToken::new()));
    tokio::time::sleep(patience * 3).await;
    assert_eq!(liveness.check(), Ok(()), "it waits for a version");
    world.images.hangs.store(true, Ordering::Relaxed);
    world.select(1);
    while world.images.asked.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(liveness.check(), Ok(()), "it has started");
    tokio::time::sleep(patience + PULSE_INTERVAL).await;
    assert!(liveness.check().unwrap_err().starts_with("node sent no"));
    agent.abort();
}

#[test]
fn removal_that_hangs_is_named_by_the_watchdog() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new();
        let (liveness, slots) = (Liveness::new(CancellationToken::new()), world.parts.slots.clone());
        let (release, held) = std::sync::mpsc::channel::<()>();
        // The only thread for files is busy.
        let busy = tokio::task::spawn_blocking(move || held.recv());
        let pulse = liveness.part("trash removal", PULSE_INTERVAL);
        let (mut rounds, shutdown) = (slots.trash().removal(), CancellationToken::new());
        let removal = tokio::spawn(trash::serve(slots, Arc::default(), pulse, shutdown.clone()));
        tokio::task::yield_now().await;
        tokio::time::advance(PULSE_INTERVAL * 2).await;
        let named = liveness.check().unwrap_err();
        assert!(named.starts_with("trash removal sent no"), "{named}");
        drop(release);
        assert!(busy.await.unwrap().is_err());
        rounds.changed().await.unwrap();
        tokio::time::sleep(PULSE_INTERVAL * 4).await;
        assert_eq!(liveness.check(), Ok(()), "it waits for more");
        shutdown.cancel();
        removal.await.unwrap();
    });
}
