//! Publishes an Event for a Machine when its image or its fixed addresses start to keep it from booting. Repeated attempts cause no further
//! Event.

use std::collections::BTreeSet;
use std::time::Duration;

use bedplate_api::id::MachineName;
use bedplate_api::reason::event::PxedEvent;
use bedplate_process::reconcile::{Activation, Reconcile, Turn};
use tokio::time::Instant;

use super::health::Look;
use crate::boot_policy::ImageState;
use crate::readiness::{MachineView, image_obstacle};

/// Interval between two checks of the Machines.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The loop, with the Machines that had an obstacle at the last check.
pub(super) struct ImageEvents {
    look: Look,
    images: BTreeSet<MachineName>,
    addresses: BTreeSet<MachineName>,
    strays: BTreeSet<MachineName>,
}

impl ImageEvents {
    /// Makes the loop.
    pub(super) fn new(look: Look) -> Self {
        Self { look, images: BTreeSet::new(), addresses: BTreeSet::new(), strays: BTreeSet::new() }
    }

    fn check(&mut self) {
        let machines = self.look.view().machines;
        let registry = &self.look.site.registry;
        for (name, why) in new_obstacles(&machines, &mut self.images, unavailable_image) {
            registry.event(&name, PxedEvent::ImageUnavailable, why);
        }
        for (name, why) in new_obstacles(&machines, &mut self.addresses, |machine| machine.misplaced.clone())
        {
            registry.event(&name, PxedEvent::AddressOutsideSubnets, why);
        }
        // A Machine whose addresses are in no subnet at all has its Event already.
        let strays = self.look.strays().into_iter();
        let elsewhere = strays.filter(|(name, _)| !self.addresses.contains(name)).collect();
        for (name, why) in new_since(elsewhere, &mut self.strays) {
            registry.event(&name, PxedEvent::AddressOutsideSubnets, why);
        }
    }
}

impl Reconcile for ImageEvents {
    type Event = ();

    async fn changed(&mut self) -> Option<()> {
        std::future::pending().await
    }

    async fn turn(&mut self, activation: Activation<()>) -> Turn {
        if activation != Activation::Start {
            self.check();
        }
        Turn::At(Instant::now() + CHECK_INTERVAL)
    }
}

/// Returns the problem with an image, except that it is being fetched.
fn unavailable_image(machine: &MachineView) -> Option<String> {
    match machine.image_state {
        ImageState::Failed(_) | ImageState::Unusable(_) | ImageState::Unknown => image_obstacle(machine),
        ImageState::Ready | ImageState::Fetching(_) => None,
    }
}

/// Returns the Machines that have the obstacle now and did not have it at the last call; `known` are those that did. A Machine
/// whose MAC address others claim is not served.
fn new_obstacles(
    machines: &[MachineView],
    known: &mut BTreeSet<MachineName>,
    obstacle: impl Fn(&MachineView) -> Option<String>,
) -> Vec<(MachineName, String)> {
    let uncontested = machines.iter().filter(|machine| machine.contested.is_empty());
    new_since(uncontested.filter_map(|m| Some((m.name.clone(), obstacle(m)?))).collect(), known)
}

/// Returns what was not there at the last call; `known` are the Machines of that call.
fn new_since(
    now: Vec<(MachineName, String)>,
    known: &mut BTreeSet<MachineName>,
) -> Vec<(MachineName, String)> {
    let names = now.iter().map(|(name, _)| name.clone()).collect();
    let before = std::mem::replace(known, names);
    now.into_iter().filter(|(name, _)| !before.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(image_state: ImageState, misplaced: Option<String>) -> [MachineView; 1] {
        [MachineView {
            name: "a".parse().unwrap(),
            contested: Vec::new(),
            misplaced,
            remark: None,
            image: "host".to_owned(),
            image_state,
        }]
    }

    #[test]
    fn missing_image_is_reported_at_start_and_again_after_it_was_present() {
        let view = |image_state| view(image_state, None);
        let mut known = BTreeSet::new();
        let failed = view(ImageState::Failed("away".to_owned()));
        assert_eq!(new_obstacles(&failed, &mut known, unavailable_image).len(), 1);
        assert_eq!(new_obstacles(&view(ImageState::Unknown), &mut known, unavailable_image).len(), 0);
        assert_eq!(new_obstacles(&view(ImageState::Ready), &mut known, unavailable_image).len(), 0);
        assert_eq!(
            new_obstacles(&failed, &mut known, unavailable_image)[0].1,
            "image host is not available: away"
        );
    }

    #[test]
    fn fixed_addresses_of_no_subnet_are_published_once() {
        let mut known = BTreeSet::new();
        let machines = view(ImageState::Ready, Some("in no subnet".to_owned()));
        let mut look = || new_obstacles(&machines, &mut known, |machine| machine.misplaced.clone());
        assert_eq!((look().len(), look().len()), (1, 0));
    }
}
