//! Credentials and authorities of the registry do not outlive the fetch.

use super::*;

const FILES: [&str; 2] = ["registry-ca.pem", "pull.json"];

#[test]
fn trust_8_access_to_a_registry_is_removed_when_a_fetch_is_canceled() {
    in_runtime(async {
        let world = World::new();
        world.images.hangs.store(true, Ordering::Relaxed);
        world.select(1);
        world.plane.seen.send_modify(|seen| {
            let mut version = version_object(1);
            let authority = rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert.pem();
            version.spec.template.image.ca_bundle = Some(authority);
            seen.version = Some(Arc::new(version));
        });
        let file = world.parts.slots.places().shared(SlotName::A).join(FILES[0]);
        let mut agent = world.agent();
        let cancel = async {
            while world.images.asked.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            assert!(file.exists());
            world.select(2);
        };
        tokio::join!(agent.advance(), cancel);
        assert!(!file.exists());
    });
}

#[test]
fn trust_8_access_to_a_registry_that_a_killed_agent_left_is_removed() {
    in_runtime(async {
        let world = World::new();
        let mut paths = Vec::new();
        for slot in SlotName::ALL {
            let shared = world.parts.slots.places().shared(slot);
            std::fs::create_dir_all(&shared).unwrap();
            paths.extend(FILES.map(|name| shared.join(name)));
        }
        for path in &paths {
            std::fs::write(path, "secret").unwrap();
        }
        let gone = async {
            while paths.iter().any(|path| path.exists()) {
                tokio::task::yield_now().await;
            }
        };
        let limit = Duration::from_secs(20);
        tokio::select! {
            () = world.agent().run(Pulse::unwatched(), CancellationToken::new()) => unreachable!("it runs until it is shut down"),
            ended = tokio::time::timeout(limit, gone) => ended.expect("the files are removed"),
        }
    });
}
