//! Pure: from a condition's reason to who has to act, and what a person can do (docs/boot.md, docs/bmc.md, docs/node.md,
//! docs/controller.md).
//!
//! `NAME` stands for the Machine.

use bedplate_api::machine::condition_type;

use super::Actor;
use crate::operation;

/// Nothing has to be done for now.
const PATIENCE: &str = "nothing: it goes on by itself";

/// Of a Machine that is paused.
pub(super) const UNPAUSE: &str =
    "take spec.paused away: `kubectl patch machine NAME --type=merge -p '{\"spec\":{\"paused\":false}}'`";

/// Of a Machine that is drained before it goes.
pub(super) const DRAIN: &str = "its Node is drained first: `kubectl get node NAME`, `kubectl get events`";

/// What to do where the host, not its configuration, is at fault.
const HOST: &str = "on the host: `bedplate-agent status`, `journalctl -u bedplate-agent`; docs/node.md";

/// Who has to act on this reason of a condition, and what a person can do.
pub(super) fn remedy(type_: &str, reason: &str) -> Option<(Actor, &'static str)> {
    match type_ {
        condition_type::BMC_REACHABLE | condition_type::POWERED_ON => power(reason),
        condition_type::BOOTED | condition_type::ENROLLED => boot(reason),
        condition_type::CONFIGURATION_PENDING | condition_type::READY => choice(reason),
        condition_type::PAVED => paved(reason),
        condition_type::NODE_READY => node(reason),
        condition_type::DRAINED => drained(reason),
        _ => None,
    }
}

fn power(reason: &str) -> Option<(Actor, &'static str)> {
    Some(match reason {
        "PoweredOff" => {
            (Actor::Person, "nothing switches it on by itself: `bedplate power on NAME`, or by hand")
        }
        "HeldOff" => (
            Actor::Person,
            "an operation has switched it off or shut it down: `bedplate power on NAME` when it should run",
        ),
        "FoundRunning" => (
            Actor::Person,
            "`bedplate power cycle NAME` boots it from the network; or set spec.pxe.takeover to allow one power cycle (docs/machine.md)",
        ),
        "PoweringOn" | "PoweringOff" => (Actor::Bmc, PATIENCE),
        "NotReadable" => (Actor::Bmc, "`bedplate power status NAME` says since when; docs/bmc.md"),
        "PowerOnAttemptsExhausted" => (
            Actor::Person,
            "`bedplate machine show NAME` says how far its boots came; then `bedplate power on NAME`, after which it is tried again",
        ),
        "DuplicateBMC" => (Actor::Person, "correct bmc.address or bmc.systemId of one of the two Machines"),
        "BMCUnreachable" | "TimedOut" | "Refused" | "ProtocolError" => {
            (Actor::Bmc, operation::remedy(reason)?)
        }
        "AuthenticationFailed"
        | "CredentialsNotAvailable"
        | "CredentialsNotForThisAddress"
        | "InsecureNotAllowed"
        | "CertificateChanged"
        | "CertificateNotTrusted"
        | "AmbiguousSystem"
        | "UnknownSystem"
        | "AddressNotAllowed"
        | "NotSupported" => (Actor::Person, operation::remedy(reason)?),
        _ => return None,
    })
}

fn boot(reason: &str) -> Option<(Actor, &'static str)> {
    Some(match reason {
        "AwaitingBoot" => (
            Actor::Machine,
            "start it from the network; `bedplate explain NAME` says what it would be offered",
        ),
        "Booting" => (Actor::Machine, "nothing; `bedplate machine show NAME` has the timeline"),
        "Stopped" => (
            Actor::Person,
            "`bedplate machine show NAME` has the timeline, `bedplate explain NAME` what it would be offered; docs/boot.md, \"By stage\"",
        ),
        "Held" => (
            Actor::Pxed,
            "nothing on the machine: it asks again every 10 s; the message says what pxed is waiting for",
        ),
        "Failing" => (
            Actor::Machine,
            "it tries again by itself; the message has the machine's own words, docs/boot.md the rest",
        ),
        "DuplicateMACAddress" => (Actor::Person, "take the MAC address out of all of these Machines but one"),
        "AwaitingEnrolment" => {
            (Actor::Agent, "`bedplate machine show NAME` has the timeline of its boot; docs/agent.md")
        }
        "HeardElsewhere" => (
            Actor::Person,
            "if the host was replaced or reinstalled: `bedplate machine re-enrol NAME`; if it crashed, wait until the time in the message; otherwise docs/boot.md, \"Another host asks to enroll\"",
        ),
        "SeedAskedTwice" => (
            Actor::Person,
            "boot it again: it gets a new seed; who else asked is in the message (docs/boot.md)",
        ),
        _ => return None,
    })
}

fn choice(reason: &str) -> Option<(Actor, &'static str)> {
    Some(match reason {
        "NoConfiguration" => (
            Actor::Person,
            "give it a label that a MachineConfiguration selects, or name one in spec.configurationRef; `bedplate config list` shows them",
        ),
        "HardwareNotReported" => (
            Actor::Agent,
            "its agent reports the hardware when it has enrolled: `bedplate machine show NAME`",
        ),
        "ConfigurationNotFound" | "VersionNotFound" => {
            (Actor::Person, "correct spec.configurationRef; `bedplate config list` shows what is there")
        }
        "ImageUnresolved" => {
            (Actor::Registry, "name the image by its digest, or wait: the message has the registry's answer")
        }
        "NodeRegisteredAnew" => {
            (Actor::Person, "delete the Node again if the host is to be paved: `kubectl delete node NAME`")
        }
        "ForeignNode" => (
            Actor::Person,
            "the Node of this name is another host's: docs/stuck.md, \"A Node of the Machine's name exists\"",
        ),
        "Claimed" => {
            (Actor::Other, "who is named in the annotation bedplate.dev/claimed-by decides about this node")
        }
        "NodeNotReady" => return node(reason),
        "Updating" => (
            Actor::Chooser,
            "its Pods have to leave: `kubectl describe node NAME` has who is awaited in the annotation bedplate.dev/drain-awaits",
        ),
        "ControlPlaneKept" => {
            (Actor::Person, "restart the kubelet in the slot: docs/node.md, \"The first control plane\"")
        }
        _ => return None,
    })
}

fn paved(reason: &str) -> Option<(Actor, &'static str)> {
    Some(match reason {
        "Preparing" | "Starting" | "Stopping" | "Joining" | "CheckingHealth" | "Abandoned" | "Superseded" => {
            (Actor::Agent, PATIENCE)
        }
        "NothingSelected" => (
            Actor::Chooser,
            "is it running? In a cluster: `kubectl -n bedplate-system get deployment bedplate-controller`",
        ),
        "AwaitingController" => (
            Actor::Chooser,
            "the Node is gone and nothing is chosen yet: is the controller running? `kubectl -n bedplate-system get deployment bedplate-controller`",
        ),
        "GateFailed" | "VersionRefused" => (
            Actor::Person,
            "correct the MachineConfiguration, or go back: `bedplate config rollback`; status.rolledBack has the reason",
        ),
        "BackOff" => (
            Actor::Person,
            "it is tried again by itself; to end it correct the MachineConfiguration: the message has the last reason",
        ),
        "NodeStillReady" => (
            Actor::Cluster,
            "is another host up under this name? Else wait until its Node is no longer Ready",
        ),
        "ControlPlaneKept" => {
            (Actor::Person, "docs/node.md, \"The first control plane\": its Node is not deleted to repave it")
        }
        "Paused" => (Actor::Person, UNPAUSE),
        "Claimed" => {
            (Actor::Other, "who is named in the annotation bedplate.dev/claimed-by decides about this node")
        }
        "MachineDeleting" | "MachineGone" => (Actor::Agent, "docs/node.md, \"To give it up\""),
        _ => return fault(reason),
    })
}

/// What the host is not given, or cannot do.
fn fault(reason: &str) -> Option<(Actor, &'static str)> {
    Some(match reason {
        "ApiUnreachable" => {
            (Actor::Cluster, "does the host reach the API server? On the host: `bedplate-agent status`")
        }
        "VersionUnknown" => {
            (Actor::Cluster, "is the version there? `kubectl get mcv`; on the host: `bedplate-agent status`")
        }
        "ImageUnavailable" => {
            (Actor::Registry, "does the host reach the registry, and is the reference right? docs/images.md")
        }
        "NoRoom" => {
            (Actor::Person, "the message says how much is needed: a larger state disk, or more memory")
        }
        "SecretForbidden" | "SecretMissing" | "SecretUnreadable" | "SecretNotNamed" => (
            Actor::Person,
            "the message names the Secret, and the Role to make; docs/install.md, \"Secrets that a version names\"",
        ),
        "InvalidConfiguration" => (Actor::Person, "correct the MachineConfiguration: docs/kubeadm.md"),
        "KubeletCertificateEnded" => (
            Actor::Cluster,
            "nobody has approved the kubelet's request: `kubectl get csr`; docs/node.md, \"Faults\"",
        ),
        "CertificateApprovalRequired" => (
            Actor::Chooser,
            "is bedplate-controller running? Before Kubernetes 1.32: `kubectl certificate approve NAME`, with the name from the message",
        ),
        "CertificateDenied" => {
            (Actor::Person, "correct the cause that the message names, then run `kubectl delete csr NAME`")
        }
        "UnitFailed" | "DBusFailed" | "DiskFailed" | "HostUnfit" | "NoCredential" => (Actor::Person, HOST),
        "SandboxFailed" => {
            (Actor::Person, "look at the container runtime and the network plug-in in the slot: docs/node.md")
        }
        _ => return None,
    })
}

fn node(reason: &str) -> Option<(Actor, &'static str)> {
    Some(match reason {
        "NodeUnknown" => (Actor::Agent, "on the host: `bedplate-agent status`"),
        "NodeAbsent" => (Actor::Agent, PATIENCE),
        "NodeNotReady" => (Actor::Cluster, "`kubectl describe node NAME`: the kubelet, the network plug-in"),
        _ => return None,
    })
}

/// Of a Machine that is drained before it goes (deletionPolicy Drain).
fn drained(reason: &str) -> Option<(Actor, &'static str)> {
    Some(match reason {
        "Draining" => (Actor::Chooser, DRAIN),
        "AwaitingSlot" => (
            Actor::Agent,
            "is the host up? On it: `bedplate-agent status`; after the time in the message the Machine goes without it",
        ),
        "ForeignNode" => {
            (Actor::Chooser, "nothing: that Node is left alone, and the Machine goes when its time is over")
        }
        "Paused" => (Actor::Person, UNPAUSE),
        "Claimed" => {
            (Actor::Other, "who is named in the annotation bedplate.dev/claimed-by decides about this node")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasons in backticks in the cells of a document's tables that begin after `from` and end before `to`.
    fn reasons(document: &str, from: &str, to: &str, column: usize) -> Vec<String> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(document);
        let text = std::fs::read_to_string(path).unwrap();
        let part = text.split_once(from).unwrap_or_else(|| panic!("{document}: {from}")).1;
        let part = part.split_once(to).map_or(part, |(part, _)| part);
        let rows = part.lines().filter(|line| line.starts_with("| ") || line.starts_with("|---"));
        let cells = rows.filter_map(|line| line.split('|').nth(column));
        let words =
            cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
        words
            .filter(|word| word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphanumeric))
            .collect()
    }

    #[test]
    fn every_reason_that_the_documents_name_has_a_remedy() {
        // Done, or said of an operation alone.
        let others = [
            "Applied",
            "Userspace",
            "InvalidParameters",
            "MachineDeleted",
            "MachineNotFound",
            "Booted",
            "MachinePaused",
            "AllComplete",
            "MachinesFailed",
            "NothingMatched",
            "Unknown",
            "Matched",
            "Selected",
            "Ready",
            "ConfigurationPending",
            "Progressing",
            "Degraded",
        ];
        let mut found = 0;
        for (type_, document, from, to, column) in [
            (condition_type::PAVED, "node.md", "`Applied` | All is as it is to be", "\n\n", 1),
            (condition_type::BOOTED, "boot.md", "| `Booted` | reason | meaning |", "\n\n", 2),
            (
                condition_type::CONFIGURATION_PENDING,
                "first-control-plane.md",
                "| `ConfigurationPending` | reason |",
                "\n\n",
                2,
            ),
            (condition_type::CONFIGURATION_PENDING, "controller.md", "| condition | reason |", "\n\n", 2),
            (condition_type::BMC_REACHABLE, "bmc.md", "| `BMCUnreachable` |", "\n\n", 1),
        ] {
            for reason in reasons(document, from, to, column) {
                found += 1;
                let known = remedy(type_, &reason).is_some() || others.contains(&reason.as_str());
                assert!(known, "{document}: nothing is said about {type_} {reason}");
            }
        }
        assert!(found > 50, "{found}: the tables are elsewhere");
    }
}
