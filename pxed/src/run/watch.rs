//! Tells of Machines whose image is not to be had: an Event when it begins, not at every try.

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_api::id::MachineName;
use tokio_util::sync::CancellationToken;

use super::look::Look;
use crate::boot_policy::ImageState;
use crate::readiness::{MachineView, obstacle};
use crate::status::EventReason;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Looks until `shutdown`.
pub(super) async fn tell_of_images(look: Look, shutdown: CancellationToken) {
    let mut told = BTreeSet::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let machines = look.view().machines;
        for (name, why) in begun(&machines, &mut told) {
            look.knowledge.registry.event(&name, EventReason::ImageNotAvailable, why);
        }
    }
}

/// The Machines whose image has become unavailable since the last look; `told` are those before.
fn begun(machines: &[MachineView], told: &mut BTreeSet<MachineName>) -> Vec<(MachineName, String)> {
    let unavailable = |machine: &&MachineView| match machine.image_state {
        ImageState::Failed(_) | ImageState::Unusable(_) | ImageState::Unknown => machine.contested.is_empty(),
        ImageState::Ready | ImageState::Fetching(_) => false,
    };
    let now: Vec<&MachineView> = machines.iter().filter(unavailable).collect();
    let new = now.iter().filter(|machine| !told.contains(&machine.name));
    let new: Vec<_> = new.filter_map(|m| Some((m.name.clone(), obstacle(m)?))).collect();
    *told = now.into_iter().map(|machine| machine.name.clone()).collect();
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_image_is_told_when_it_begins_and_again_after_it_was_there() {
        let view = |image_state| {
            [MachineView {
                name: "a".parse().unwrap(),
                contested: Vec::new(),
                image: "host".to_owned(),
                image_state,
            }]
        };
        let mut told = BTreeSet::new();
        let failed = view(ImageState::Failed("away".to_owned()));
        assert_eq!(begun(&failed, &mut told).len(), 1);
        assert_eq!(begun(&view(ImageState::Unknown), &mut told).len(), 0);
        assert_eq!(begun(&view(ImageState::Ready), &mut told).len(), 0);
        assert_eq!(begun(&failed, &mut told)[0].1, "image host is not available: away");
    }
}
