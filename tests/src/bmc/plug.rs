//! A QEMU behind a chassis: switched on, it is a process; without power there is none.
//!
//! A machine's order of boot sources is what it was started with, also when its guest restarts by itself.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::chassis::{Hardware, Source};
use crate::netns::Namespace;
use crate::qemu::{Machine, Spec};

/// A place for a machine in a rack, with or without power.
#[derive(Debug)]
pub struct Plug {
    spec: Spec,
    network: Arc<Namespace>,
    tap: String,
    directory: PathBuf,
    machine: Option<Machine>,
}

impl Plug {
    /// A machine without power, its network card on `tap` of `network`.
    pub fn new(spec: Spec, network: Arc<Namespace>, tap: String, directory: PathBuf) -> Self {
        Self { spec, network, tap, directory, machine: None }
    }

    fn running(&self) -> Result<&Machine> {
        self.machine.as_ref().context("the machine has no power")
    }
}

impl Hardware for Plug {
    fn power_on(&mut self, boot: Source) -> Result<()> {
        let machine = Machine::power_on_from(boot, &self.spec, &self.network, &self.tap, &self.directory)?;
        self.machine = Some(machine);
        Ok(())
    }

    fn power_off(&mut self) {
        self.machine = None;
    }

    fn press_button(&mut self) -> Result<()> {
        self.running()?.press_power_button()
    }

    fn reset(&mut self) -> Result<()> {
        self.running()?.reset()
    }

    fn has_power(&mut self) -> bool {
        self.machine.as_mut().is_some_and(Machine::has_power)
    }
}
