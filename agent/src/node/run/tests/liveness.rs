//! A step that hangs is named by the watchdog; a loop that waits for a change is not.

use bedplate_process::liveness::{BEAT, Liveness, Pulse};

use super::*;

#[tokio::test(start_paused = true)]
async fn node_step_that_hangs_is_named_by_the_watchdog() {
    let world = World::new();
    let liveness = Liveness::new(CancellationToken::new());
    let patience = BEAT * 4;
    let pulse: Pulse = liveness.part("node", patience);
    let agent = tokio::spawn(world.agent().run(pulse, CancellationToken::new()));
    tokio::time::sleep(patience * 3).await;
    assert_eq!(liveness.check(), Ok(()), "it waits for a version");
    world.images.hangs.store(true, Ordering::Relaxed);
    world.select(1);
    while world.images.asked.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(liveness.check(), Ok(()), "it has begun");
    tokio::time::sleep(patience + BEAT).await;
    assert!(liveness.check().unwrap_err().starts_with("node gave no"));
    agent.abort();
}
