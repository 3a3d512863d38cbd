//! Replay of upstream's recorded rollouts as numbers (MD2, MD4): each decision must be the same.
//!
//! `goldens/rollouts.txt` holds numbers only. The records show no pending deletion, and few unavailable Machines, so the tables of
//! `deployment` and the exploration decide about those.

use crate::deployment::tests::{deployment, summary};
use crate::{Amount, DeploymentView, Key, Strategy, plan_deployment};

/// Reads `log STRATEGY SURGE UNAVAILABLE`.
fn strategy(line: &str) -> Strategy {
    let words: Vec<&str> = line.split(' ').collect();
    let amount = |index: usize| Amount::Count(words[index].parse().unwrap());
    match words[1] {
        "rolling" => Strategy::RollingUpdate { surge: amount(2), unavailable: amount(3) },
        "on-delete" => Strategy::OnDelete,
        other => panic!("{other} is not a strategy"),
    }
}

/// Reads `SET:EXISTING/ASKED/AVAILABLE>NEW-ASKED`.
fn set(word: &str) -> [u32; 5] {
    let numbers: Vec<u32> = word.split([':', '/', '>']).map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Reads `REPLICAS CURRENT SET...`, and returns the view and the expected replicas of each set.
fn decision(strategy: Strategy, line: &str) -> (DeploymentView, Vec<(Key, u32)>) {
    let words: Vec<&str> = line.split(' ').collect();
    let (replicas, current) = (words[0].parse().unwrap(), words[1].parse::<u32>().unwrap());
    let sets: Vec<[u32; 5]> = words[2..].iter().map(|word| set(word)).collect();
    let summaries = sets.iter().map(|[index, existing, asked, available, _]| {
        let version = if *index == current { "desired" } else { "former" };
        summary(&format!("ms{index}"), version, i64::from(*index), [*asked, *existing, *available])
    });
    let view = deployment(replicas, strategy, "desired", summaries.collect());
    let expected = sets.iter().map(|[index, _, _, _, next]| (Key(format!("ms{index}")), *next));
    (view, expected.collect())
}

#[test]
fn md2_decisions_of_upstream_are_the_same() {
    let text = include_str!("../goldens/rollouts.txt");
    let (mut logs, mut decisions, mut current) = (0, 0, Strategy::OnDelete);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with("log ") {
            current = strategy(line);
            logs += 1;
            continue;
        }
        decisions += 1;
        let (view, expected) = decision(current, line);
        let plan = plan_deployment(&view, crate::set::tests::at(1000));
        for (key, next) in expected {
            let asked = view.sets.iter().find(|set| set.key == key).unwrap().asked;
            assert_eq!(plan.scale.get(&key).copied().unwrap_or(asked), next, "{key} of {current:?}: {line}");
        }
    }
    println!("{logs} logs, {decisions} decisions");
    assert_eq!((logs, decisions), (28, 264));
}
