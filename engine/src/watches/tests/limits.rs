//! Limits of the watches, and their end.

use super::*;

#[tokio::test(start_paused = true)]
async fn m5_numbers_of_kinds_are_bounded() {
    let mut world = world();
    let all: Vec<GroupKind> = (0..=MAX_NAMED).map(|number| kind(&format!("Rack{number}"))).collect();
    for kind in &all {
        world.server.install(kind, list(&[("x", 1)]));
    }
    // No namespace exceeds its limit.
    let user = |number: usize| {
        let namespace = number.min(MAX_NAMED - 1) / (MAX_NAMED_BY_NAMESPACE - 1);
        user_in(&format!("team-{namespace}"), "a")
    };
    let get = |world: &World, number: usize| {
        world.watches.get(&user(number), Reference { kind: &all[number], namespace: "team", name: "x" })
    };
    for number in 0..all.len() {
        let _ = get(&world, number);
    }
    wait(10).await;
    let found = |world: &World| (0..all.len()).filter(|number| is_found(&get(world, *number))).count();
    assert_eq!(found(&world), MAX_WATCHED);
    let too_many = Lookup::Unresolved(Unresolved::TooManyKinds);
    assert_eq!(get(&world, MAX_NAMED), too_many);
    assert_eq!(world.watches.users(&all[MAX_NAMED]), []);
    for number in (0..all.len()).filter(|number| is_found(&get(&world, *number))).collect::<Vec<_>>() {
        let others: Vec<&GroupKind> = all.iter().filter(|kind| **kind != all[number]).collect();
        world.watches.keep(&user(number), &others);
    }
    world.changes();
    wait(700).await;
    assert_eq!(world.changes().len(), 2 * MAX_WATCHED, "places that become free are reported");
}

#[tokio::test(start_paused = true)]
async fn m5_namespaces_that_name_many_kinds_exclude_no_other() {
    let (world, rack) = (world(), kind("Rack"));
    world.server.install(&rack, list(&[("x", 1)]));
    for number in 0..MAX_NAMED {
        let user = user_in(&format!("greedy-{}", number / MAX_NAMED_BY_NAMESPACE), "a");
        let absent = kind(&format!("Absent{number}"));
        let _ = world.watches.get(&user, Reference { kind: &absent, namespace: "greedy", name: "x" });
    }
    let _ = world.get("a", &rack, "x");
    wait(5).await;
    assert!(is_found(&world.get("a", &rack, "x")));
    let too_many = Lookup::Unresolved(Unresolved::TooManyKinds);
    for number in 1..=RESERVED_BY_NAMESPACE {
        let found = world.get("a", &kind(&format!("Other{number}")), "x");
        assert_eq!(found == too_many, number == RESERVED_BY_NAMESPACE, "{number}");
    }
}

#[tokio::test(start_paused = true)]
async fn m5_invalid_names_cause_no_request() {
    let world = world();
    for (group, kind) in
        [("infra.test", "Y"), ("", "Secret"), ("a/b", "Rack"), ("infra.test", "Ra/ck"), ("x", "")]
    {
        let kind = GroupKind::new(group, kind);
        assert!(world.reason(&kind, 5).await.contains("no valid API group and kind"), "{kind}");
    }
    assert!(world.server.0.lock().unwrap().requests.is_empty());
}

#[tokio::test(start_paused = true)]
async fn m5_shutdown_joins_all_watches() {
    let (world, rack, shelf) = (world(), kind("Rack"), kind("Shelf"));
    world.server.install(&rack, list(&[("x", 1)]));
    world.server.install(&shelf, Answer::Never);
    for kind in [&rack, &shelf] {
        let _ = world.get("a", kind, "x");
    }
    wait(5).await;
    world.shutdown.cancel();
    world.task.await.unwrap();
    // The handler, and so its sender, is dropped with the last watch.
    let mut changes = world.changes;
    while changes.try_recv().is_ok() {}
    assert!(changes.is_closed());
}

#[tokio::test(start_paused = true)]
async fn m5_namespace_at_its_limit_of_kinds_blocks_no_other() {
    let (world, rack) = (world(), kind("Rack"));
    world.server.install(&rack, list(&[("x", 1)]));
    let too_many = Lookup::Unresolved(Unresolved::TooManyKindsOfNamespace);
    for number in 0..2 * MAX_NAMED {
        let user = user_in("greedy", &format!("m{number}"));
        let absent = kind(&format!("Absent{number}"));
        let found = world.watches.get(&user, Reference { kind: &absent, namespace: "greedy", name: "x" });
        assert_eq!(found == too_many, number >= MAX_NAMED_BY_NAMESPACE, "{number}");
        // A release does not free the place before the watch ends.
        world.watches.release(&user);
    }
    let _ = world.get("a", &rack, "x");
    wait(5).await;
    assert!(is_found(&world.get("a", &rack, "x")));
    let known = Reference { kind: &rack, namespace: "team", name: "x" };
    assert!(is_found(&world.watches.get(&user_in("greedy", "m"), known)), "a known kind takes no place");
    wait(700).await;
    let absent = kind("Absent");
    let freed = Reference { kind: &absent, namespace: "greedy", name: "x" };
    assert_eq!(world.watches.get(&user_in("greedy", "m"), freed), Lookup::NotSynced);
}
