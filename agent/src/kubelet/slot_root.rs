//! The slot that runs, and its systemd. Called by `restart`, `kubelet`, `credential` and `node`.

use std::sync::Arc;

use bedplate_api::machine::SlotName;

use crate::bus::{BusError, Container, Machines, Units};
use crate::slot::paths::machine;

/// The container of the slot that runs, if one does. Two never do: one is stopped before the other is started.
pub(crate) async fn running(machines: &dyn Machines) -> Result<Option<Container>, BusError> {
    for slot in SlotName::ALL {
        let Ok(name) = machine(slot).parse() else { continue };
        if let Some(container) = machines.get(&name).await? {
            return Ok(Some(container));
        }
    }
    Ok(None)
}

/// systemd of the slot that runs.
pub(crate) async fn units(machines: &dyn Machines) -> Result<Option<Arc<dyn Units>>, BusError> {
    Ok(running(machines).await?.map(|container| machines.units(container.leader)))
}
