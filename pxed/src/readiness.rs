//! Pure: resources that pxed can boot now, and reasons why not, from the state of everything that a boot needs. Shown
//! by `/readyz` and by `bedplate`.
//!
//! Ready means that machines can be booted here. One Machine whose image is missing is named, but does not affect the
//! others.

use bedplate_api::id::MachineName;
use bedplate_process::health::Readiness;

use crate::boot_policy::ImageState;
use crate::machines::source::SourceState;

/// Lines about single Machines at most, so that a probe's answer stays small.
const MAX_LINES: usize = 100;

/// Resources of one Machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineView {
    /// The Machine.
    pub name: MachineName,
    /// Other Machines that claim its addresses.
    pub contested: Vec<MachineName>,
    /// Reason that its fixed addresses cannot be given.
    pub misplaced: Option<String>,
    /// Deviation from its fixed addresses with which it can boot.
    pub remark: Option<String>,
    /// Image of the Machine, as users name it.
    pub image: String,
    /// State of its image.
    pub image_state: ImageState,
}

/// State of everything that a boot needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// State of the source of Machines.
    pub source: SourceState,
    /// Every known Machine.
    pub machines: Vec<MachineView>,
    /// DHCP interfaces that are served.
    pub interfaces_serving: usize,
    /// DHCP interfaces that are not, each with its reason.
    pub interfaces_waiting: Vec<(String, String)>,
    /// Loaders that the configuration names and that are not there.
    pub missing_loaders: Vec<String>,
}

/// Returns the reason why a Machine cannot boot; `None` if it can.
pub(crate) fn obstacle(machine: &MachineView) -> Option<String> {
    if !machine.contested.is_empty() {
        let others: Vec<_> = machine.contested.iter().map(MachineName::as_str).collect();
        return Some(format!("its MAC address is also claimed by {}", others.join(" and ")));
    }
    machine.misplaced.clone().or_else(|| image_obstacle(machine))
}

/// Returns the problem with the Machine's image.
pub(crate) fn image_obstacle(machine: &MachineView) -> Option<String> {
    let image = &machine.image;
    match &machine.image_state {
        ImageState::Ready => None,
        ImageState::Fetching(progress) => Some(format!("image {image} is being fetched: {progress}")),
        ImageState::Failed(why) => Some(format!("image {image} is not available: {why}")),
        ImageState::Unusable(why) => Some(format!("image {image} must be corrected: {why}")),
        ImageState::Unknown => Some(format!("image {image} is not in the configuration")),
    }
}

/// Decides readiness, with all reasons that help a user.
pub fn judge(view: &View) -> Readiness {
    let mut reasons = Vec::new();
    let known = view.machines.len();
    let obstacles: Vec<_> = view.machines.iter().filter_map(|m| Some((&m.name, obstacle(m)?))).collect();
    let bootable = known.saturating_sub(obstacles.len());
    let mut ready = true;
    if !view.source.synced {
        let why = view.source.unreachable.as_deref().unwrap_or("not read yet");
        let served = if known == 0 { "no machines are known" } else { "serving the stored machines" };
        reasons.push(format!("source {}: {why}; {served}", view.source.source));
        ready &= known > 0;
    } else if let Some(why) = &view.source.unreachable {
        reasons.push(format!("source {}: {why}; serving the known machines", view.source.source));
    }
    for (name, why) in &view.interfaces_waiting {
        reasons.push(format!("interface {name}: {why}"));
    }
    ready &= view.interfaces_serving > 0 || view.interfaces_waiting.is_empty();
    ready &= known == 0 || bootable > 0;
    reasons.extend(view.missing_loaders.iter().map(|problem| format!("loader: {problem}")));
    reasons.push(format!("{bootable} of {known} machines can boot"));
    let shown = obstacles.iter().take(MAX_LINES);
    reasons.extend(shown.map(|(name, why)| format!("machine {name}: {why}")));
    if let Some(more) = obstacles.len().checked_sub(MAX_LINES).filter(|more| *more > 0) {
        reasons.push(format!("and {more} more machines"));
    }
    let remarks = view.machines.iter().filter_map(|m| Some((&m.name, m.remark.as_ref()?)));
    reasons.extend(remarks.take(MAX_LINES).map(|(name, remark)| format!("machine {name}: {remark}")));
    reasons.extend(view.source.problems.iter().take(MAX_LINES).cloned());
    Readiness { ready, reasons }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str, image_state: ImageState) -> MachineView {
        MachineView {
            name: name.parse().unwrap(),
            contested: Vec::new(),
            misplaced: None,
            remark: None,
            image: "host".to_owned(),
            image_state,
        }
    }

    #[test]
    fn machine_with_unusable_fixed_addresses_is_named_with_the_reason() {
        let mut misplaced = machine("b", ImageState::Ready);
        misplaced.misplaced = Some("fixed addresses 10.9.0.21/24 are in none of the subnets".to_owned());
        let readiness = judge(&view(vec![machine("a", ImageState::Ready), misplaced]));
        assert!(readiness.ready);
        assert_eq!(
            readiness.reasons,
            [
                "1 of 2 machines can boot",
                "machine b: fixed addresses 10.9.0.21/24 are in none of the subnets"
            ]
        );
    }

    #[test]
    fn machine_with_a_remark_can_boot_and_is_named() {
        let mut differs = machine("b", ImageState::Ready);
        differs.remark = Some("fixed address 10.7.0.21/8 has another prefix length".to_owned());
        let readiness = judge(&view(vec![differs]));
        assert_eq!(
            readiness.reasons,
            ["1 of 1 machines can boot", "machine b: fixed address 10.7.0.21/8 has another prefix length"]
        );
    }

    fn view(machines: Vec<MachineView>) -> View {
        let source = SourceState { source: "kubernetes".to_owned(), synced: true, ..SourceState::default() };
        View { source, machines, interfaces_serving: 1, ..View::default() }
    }

    #[test]
    fn one_machine_that_cannot_boot_is_named_and_the_others_are_served() {
        let failed = machine("b", ImageState::Failed("registry away".to_owned()));
        let readiness = judge(&view(vec![machine("a", ImageState::Ready), failed]));
        assert!(readiness.ready);
        assert_eq!(
            readiness.reasons,
            ["1 of 2 machines can boot", "machine b: image host is not available: registry away"]
        );
    }

    #[test]
    fn nothing_that_can_boot_is_not_ready_and_no_machines_at_all_is() {
        let fetching = machine("a", ImageState::Fetching("3 of 60 MiB".to_owned()));
        assert!(!judge(&view(vec![fetching])).ready);
        assert!(judge(&view(Vec::new())).ready);
    }

    #[test]
    fn an_api_server_that_is_away_leaves_the_known_machines_and_says_so() {
        let mut view = view(vec![machine("a", ImageState::Ready)]);
        view.source.synced = false;
        view.source.unreachable = Some("connection refused".to_owned());
        let readiness = judge(&view);
        assert!(readiness.ready);
        assert_eq!(
            readiness.reasons[0],
            "source kubernetes: connection refused; serving the stored machines"
        );
        view.machines.clear();
        assert!(!judge(&view).ready);
    }

    #[test]
    fn a_contested_machine_names_the_other_and_a_dead_network_is_not_ready() {
        let mut contested = machine("a", ImageState::Ready);
        contested.contested = vec!["b".parse().unwrap()];
        assert_eq!(obstacle(&contested).unwrap(), "its MAC address is also claimed by b");
        let mut view = view(vec![machine("a", ImageState::Ready)]);
        view.interfaces_serving = 0;
        view.interfaces_waiting = vec![("br0".to_owned(), "no such interface".to_owned())];
        assert!(!judge(&view).ready);
    }
}
