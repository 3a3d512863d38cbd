//! State beyond the stores.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "each test program uses its part")]
mod server;

use bedplate_process::lease::Tenure;
use server::{Objects, Server};

#[tokio::test]
async fn v3_versions_two_writers_give_a_machine_are_held_until_both_finish() {
    let server = Server::default();
    let world = server.world(&Objects::default(), Tenure::always(), |_| server::machine_list(&[]));
    let (edit, turn) = (world.give("w", 1), world.give("w", 2));
    drop(edit);
    assert_eq!(world.live_references().await.unwrap().1, [("w".to_owned(), 2)]);
    drop(turn);
    assert!(world.live_references().await.unwrap().1.is_empty());
}
