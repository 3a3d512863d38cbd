//! Machines whose BMC is another Machine's too: pxed drives none of them, or one would undo what the other wants.
//!
//! One address, and one system there; a Machine that names no system means the only one. Pure: no clock, no file, no socket.
//! Callers: `supervisor`, `departing`.

use std::collections::HashMap;

use bedplate_api::id::MachineName;
use bedplate_api::machine::BmcSpec;
use bedplate_bmc::address::Address;

use crate::machine::Snapshot;

/// Who claims what others claim.
#[derive(Debug, Default)]
pub(super) struct Contested(HashMap<MachineName, Vec<MachineName>>);

impl Contested {
    /// Among these Machines.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut by_address: HashMap<String, Vec<(&MachineName, Option<&str>)>> = HashMap::new();
        for known in snapshot.iter() {
            if let Some(bmc) = &known.machine.spec.bmc {
                by_address.entry(place(bmc)).or_default().push((&known.name, bmc.system_id.as_deref()));
            }
        }
        let mut contested = HashMap::new();
        for claims in by_address.values().filter(|claims| claims.len() > 1) {
            for (name, system) in claims {
                let others =
                    claims.iter().filter(|(other, theirs)| other != name && is_same_system(*system, *theirs));
                let others: Vec<MachineName> = others.map(|(other, _)| (*other).clone()).collect();
                if !others.is_empty() {
                    contested.insert((*name).clone(), others);
                }
            }
        }
        Self(contested)
    }

    /// What is said of a Machine whose BMC is another's too.
    pub(super) fn message(&self, name: &MachineName) -> Option<String> {
        const SHOWN: usize = 5;
        let others = self.0.get(name)?;
        let mut names: Vec<&str> = others.iter().map(MachineName::as_str).take(SHOWN).collect();
        if others.len() > SHOWN {
            names.push("others");
        }
        let names = names.join(" and ");
        Some(format!(
            "its BMC is that of {names} too, and none of them is driven: correct bmc.address or bmc.systemId"
        ))
    }
}

/// Whether two Machines' BMCs may be the same one, and the same system there.
pub(super) fn may_be_one(one: &BmcSpec, other: &BmcSpec) -> bool {
    is_same_system(one.system_id.as_deref(), other.system_id.as_deref()) && place(one) == place(other)
}

/// Who names no system means the only one, whichever that is.
fn is_same_system(one: Option<&str>, other: Option<&str>) -> bool {
    one.is_none() || other.is_none() || one == other
}

/// However it is written.
fn place(bmc: &BmcSpec) -> String {
    match Address::parse(&bmc.address, bmc.protocol) {
        Ok(address) => format!("{:?} {address}", bmc.protocol),
        Err(_) => bmc.address.clone(),
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::id::SiteName;
    use bedplate_api::machine::Machine;
    use serde_json::json;

    use super::*;

    fn machine(name: &str, address: &str, system: Option<&str>) -> Machine {
        let mut machine = json!({"apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": {"name": name},
            "spec": {"provider": "pxe", "pxe": {"interfaces": []}, "bmc": {"protocol": "redfish",
                "address": address, "credentialsSecretRef": {"namespace": "n", "name": "s"}}}});
        if let Some(system) = system {
            machine["spec"]["bmc"]["systemId"] = system.into();
        }
        serde_json::from_value(machine).unwrap()
    }

    #[test]
    fn one_system_at_one_address_is_one_machines() {
        for (first, second, expected) in [
            (("https://BMC1/", None), ("bmc1:443", None), true),
            (("bmc1", Some("1")), ("bmc1", None), true),
            (("bmc1", Some("1")), ("bmc1", Some("1")), true),
            (("bmc1", Some("1")), ("bmc1", Some("2")), false),
            (("bmc1", None), ("bmc2", None), false),
            (("bmc1", None), ("bmc1:8443", None), false),
        ] {
            let machines = [machine("a", first.0, first.1), machine("b", second.0, second.1)];
            let contested = Contested::of(&Snapshot::build(&SiteName::default(), machines));
            let told = contested.message(&"a".parse().unwrap());
            assert_eq!(told.is_some(), expected, "{first:?} {second:?}");
            assert_eq!(contested.message(&"b".parse().unwrap()).is_some(), expected);
            assert!(told.is_none_or(|told| told.contains("that of b too") && told.contains("bmc.systemId")));
        }
    }
}
