//! Files of the TFTP engine: the loaders, by `<file>` and by `b/<boot id>/<file>`, which also identifies the boot.
//!
//! On the packet path: loaders are in memory. Nothing else is served by TFTP.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use bedplate_api::id::{BootId, MachineName};
use bedplate_api::wire::Stage;
use bedplate_tftp::content::{Files, OpenError, Outcome, Request};
use bytes::Bytes;
use jiff::Timestamp;

use crate::boot::{Boots, Owner};
use crate::netboot::loaders::Loaders;

/// The owner's side of TFTP.
#[derive(Clone)]
pub(crate) struct LoaderFiles {
    /// The loaders.
    pub loaders: Arc<ArcSwap<Loaders>>,
    /// The boots.
    pub boots: Boots,
}

/// A name's boot and file. A leading slash is what some firmwares add.
fn parse(name: &str) -> Option<(Option<BootId>, &str)> {
    let name = name.strip_prefix('/').unwrap_or(name);
    match name.split_once('/') {
        None => Some((None, name)),
        Some(("b", rest)) => {
            let (id, file) = rest.split_once('/')?;
            (!file.contains('/')).then_some((Some(id.parse().ok()?), file))
        }
        Some(_) => None,
    }
}

impl Files for LoaderFiles {
    fn open(&self, request: &Request<'_>) -> Result<Bytes, OpenError> {
        let (id, file) = parse(request.name).ok_or(OpenError::NotFound)?;
        if let Some(id) = id {
            self.boots.get(id, Timestamp::now()).ok_or(OpenError::NotFound)?;
        }
        self.loaders.load().file(file).map(|loader| loader.bytes.clone()).ok_or(OpenError::NotFound)
    }

    fn refused(&self, request: &Request<'_>, reason: &dyn Display) {
        let Some((id, file)) = parse(request.name) else { return };
        let owner = id
            .and_then(|id| self.boots.get(id, Timestamp::now()))
            .map(|boot| boot.change(|record| record.opening.owner.clone()));
        let machine = owner.as_ref().and_then(Owner::machine).map(MachineName::as_str);
        if let Some(omitted) = self.boots.log_pace().admit("TransferRefused", machine, Instant::now()) {
            let peer = request.peer;
            tracing::warn!(machine, %peer, file, %reason, omitted, "TFTP transfer refused");
        }
    }

    fn finished(&self, request: &Request<'_>, outcome: Outcome, _sent: u64) {
        let now = Timestamp::now();
        let boot = parse(request.name).and_then(|(id, _)| self.boots.get(id?, now));
        let Some(boot) = boot else { return };
        match outcome {
            Outcome::Complete => self.boots.reached(&boot.record(), Stage::Loader, now),
            // EDK2 ends its size probe with an error and asks again: no failure.
            Outcome::ClientAborted | Outcome::Stopped => {}
            Outcome::TimedOut => {
                self.boots.failed(
                    &boot.record(),
                    Stage::Loader,
                    "the TFTP transfer of the loader timed out",
                    now,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_a_file_or_a_boots_file_and_nothing_else() {
        let id = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(parse("undionly.kpxe"), Some((None, "undionly.kpxe")));
        assert_eq!(parse("/undionly.kpxe"), Some((None, "undionly.kpxe")));
        assert_eq!(parse(&format!("b/{id}/x.efi")), Some((Some(id.parse().unwrap()), "x.efi")));
        for name in ["b/x/y", "b/x", "c/x/y", &format!("b/{id}/x/y"), "a/b"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
