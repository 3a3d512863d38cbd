//! Power of a host in namespaces, for a simulated BMC.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Result, ensure};
use bedplate_tests::bmc::chassis::{Hardware, Source};
use bedplate_tests::worker::Worker;

/// The hosts that run, by their names.
pub(crate) type Hosts = Arc<Mutex<BTreeMap<&'static str, Worker>>>;

/// Power of one host. Without power there is no host. The test boots a host that has power.
pub(crate) struct Power {
    name: &'static str,
    hosts: Hosts,
    is_on: bool,
}

impl Power {
    /// A host that is off.
    pub(crate) fn new(name: &'static str, hosts: Hosts) -> Self {
        Self { name, hosts, is_on: false }
    }
}

impl Hardware for Power {
    fn power_on(&mut self, _boot: Source) -> Result<()> {
        self.is_on = true;
        Ok(())
    }

    fn power_off(&mut self) {
        self.is_on = false;
        drop(self.hosts.lock().unwrap().remove(self.name));
    }

    fn press_button(&mut self) -> Result<()> {
        ensure!(self.is_on, "the host has no power");
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.power_off();
        self.is_on = true;
        Ok(())
    }

    fn has_power(&mut self) -> bool {
        self.is_on || self.hosts.lock().unwrap().contains_key(self.name)
    }
}
