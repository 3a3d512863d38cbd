//! One Machine's key is put in force by one request at a time: what was decided still holds when it is written.
//!
//! Nothing waits: a host that is refused its turn asks again. Part of [`super::service`].

use std::collections::HashSet;

use bedplate_api::id::MachineName;
use bedplate_process::lock::Lock;

/// Machines whose key is being written.
#[derive(Debug, Default)]
pub struct Turns(Lock<HashSet<MachineName>>);

impl Turns {
    /// Takes the turn of a Machine, until it is dropped; `None`: another request has it.
    pub(super) fn take(&self, name: &MachineName) -> Option<Turn<'_>> {
        self.0.lock().insert(name.clone()).then(|| Turn { turns: self, name: name.clone() })
    }
}

/// The right to write the key of a Machine.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    name: MachineName,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.0.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_one_turn_and_another_machine_its_own() {
        let turns = Turns::default();
        let (first, second) = ("node1".parse().unwrap(), "node2".parse().unwrap());
        let turn = turns.take(&first);
        assert!(turn.is_some() && turns.take(&first).is_none() && turns.take(&second).is_some());
        drop(turn);
        assert!(turns.take(&first).is_some());
    }
}
