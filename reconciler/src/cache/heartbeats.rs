//! Liveness of agents by this program's own clock. The clock of a host may be wrong, so a heartbeat time is
//! compared only with the agent's earlier ones.
//!
//! Updated by `watch`, read by `judge`.

use std::collections::HashMap;

use bedplate_api::machine::{AgentStatus, Machine};
use bedplate_engine::elapsed::Lasting;
use bedplate_process::lock::Lock;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// Time without a heartbeat after which an agent is unreachable: three heartbeat intervals.
const HEARTBEAT_TIMEOUT: SignedDuration = SignedDuration::from_secs(15 * 60);

/// Last heartbeat of each agent, and the time since it arrived.
#[derive(Debug, Default)]
pub struct Heard(Lock<HashMap<String, Word>>);

#[derive(Debug)]
struct Word {
    uid: Option<String>,
    said: Option<AgentStatus>,
    silent: Lasting,
}

impl Heard {
    /// Records a Machine that was added or changed.
    pub fn put(&self, machine: &Machine, now: Timestamp) {
        let mut all = self.0.lock();
        let said = said(machine);
        let silent = match all.get(&machine.name_any()).filter(|word| word.uid == machine.metadata.uid) {
            Some(word) if word.said.as_ref() == said => return,
            Some(_) => Lasting::started(),
            None => found(said, now),
        };
        let word = Word { uid: machine.metadata.uid.clone(), said: said.cloned(), silent };
        all.insert(machine.name_any(), word);
    }

    /// Forgets a Machine that was deleted.
    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Returns true if no heartbeat of the Machine's agent arrived for too long, or never.
    pub fn is_silent(&self, machine: &Machine, now: Timestamp) -> bool {
        let Some(said) = said(machine) else { return true };
        let all = self.0.lock();
        let word = all.get(&machine.name_any()).filter(|word| word.uid == machine.metadata.uid);
        // The object may be slightly older or newer than the recorded heartbeat.
        word.map_or_else(|| found(Some(said), now), |word| word.silent).time() > HEARTBEAT_TIMEOUT
    }
}

fn said(machine: &Machine) -> Option<&AgentStatus> {
    machine.status.as_ref()?.agent.as_ref().filter(|agent| agent.last_heartbeat_time.is_some())
}

/// Returns the age of a heartbeat that arrived before this process started, from the time in it.
fn found(said: Option<&AgentStatus>, now: Timestamp) -> Lasting {
    let written = said.and_then(|said| said.last_heartbeat_time.as_ref()).map_or(now, |time| time.0);
    Lasting::found(written, now, HEARTBEAT_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn machine(uid: &str, heartbeat: Option<i64>) -> Machine {
        let agent = heartbeat.map(|second| json!({ "lastHeartbeatTime": at(second).to_string() }));
        let object = json!({ "metadata": { "name": "a", "uid": uid }, "spec": { "provider": "manual" },
            "status": { "agent": agent } });
        serde_json::from_value(object).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    async fn pass(minutes: u64) {
        tokio::time::advance(Duration::from_secs(60 * minutes)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn c4_agent_with_a_wrong_clock_is_reachable_while_heartbeats_change() {
        for wrong in [-86_400, 0, 86_400] {
            let heard = Heard::default();
            heard.put(&machine("u", Some(wrong)), at(0));
            pass(5).await;
            let next = machine("u", Some(wrong + 300));
            heard.put(&next, at(300));
            pass(15).await;
            // A repeated heartbeat is not new, and a leap of this program's wall clock does not count.
            heard.put(&next, at(1200));
            for leap in [-86_400, 1200, 86_400] {
                assert!(!heard.is_silent(&next, at(leap)), "{wrong} {leap}");
            }
            pass(1).await;
            for leap in [-86_400, 1260, 86_400] {
                assert!(heard.is_silent(&next, at(leap)), "{wrong} {leap}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c4_after_a_start_the_written_heartbeat_counts_until_a_new_one() {
        for (written, silent_after) in [(0, 15), (-600, 5), (-86_400, 0), (86_400, 15)] {
            let (heard, machine) = (Heard::default(), machine("u", Some(written)));
            heard.put(&machine, at(0));
            assert!(!heard.is_silent(&machine, at(0)), "{written}");
            pass(silent_after).await;
            assert!(!heard.is_silent(&machine, at(0)), "{written}");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(heard.is_silent(&machine, at(0)), "{written}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c4_heartbeat_does_not_count_for_a_re_created_or_agentless_machine() {
        let heard = Heard::default();
        heard.put(&machine("u", Some(0)), at(0));
        assert!(heard.is_silent(&machine("v", None), at(0)), "it has no agent yet");
        heard.put(&machine("v", None), at(0));
        pass(60).await;
        let first = machine("v", Some(-86_400));
        heard.put(&first, at(3600));
        assert!(!heard.is_silent(&first, at(3600)), "its first word was heard now");
        heard.remove("a");
        assert!(!heard.is_silent(&machine("v", Some(3600)), at(3600)), "by what it wrote");
    }
}
