//! Machines that share a BMC: pxed drives none of them, because one could undo the changes of another.
//!
//! One address, and one system there; a Machine that names no system means the only one. Pure: no clock, no file, no socket.
//! Callers: `supervisor`, `deleted_machines`.

use std::collections::{BTreeMap, HashMap};

use bedplate_api::id::MachineName;
use bedplate_api::machine::BmcSpec;
use bedplate_bmc::address::Address;

/// BMCs, and the Machines that claim them.
#[derive(Debug, Default)]
pub(crate) struct Contested {
    /// BMC of each Machine.
    places: HashMap<MachineName, String>,
    /// Machines that claim each BMC, with the system that they name.
    claims: HashMap<String, BTreeMap<MachineName, Option<String>>>,
}

impl Contested {
    /// A Machine has this BMC from now on, or none; those of whom something else may be said by that.
    pub(crate) fn claim(&mut self, name: &MachineName, bmc: Option<&BmcSpec>) -> Vec<MachineName> {
        let mut touched = Vec::new();
        let before = self.places.remove(name);
        if let Some(claims) = before.as_ref().and_then(|place| self.claims.get_mut(place)) {
            let system = claims.remove(name).flatten();
            touched.extend(may_be(claims, system.as_deref()).cloned());
        }
        if let Some(bmc) = bmc {
            let place = place(bmc);
            let claims = self.claims.entry(place.clone()).or_default();
            touched.extend(may_be(claims, bmc.system_id()).cloned());
            claims.insert(name.clone(), bmc.system_id().map(str::to_owned));
            self.places.insert(name.clone(), place);
        }
        if let Some(place) = before.filter(|place| self.claims.get(place).is_some_and(BTreeMap::is_empty)) {
            self.claims.remove(&place);
        }
        touched
    }

    /// Returns true if a Machine may claim this BMC, in any notation.
    pub(crate) fn is_claimed(&self, bmc: &BmcSpec) -> bool {
        let claims = self.claims.get(&place(bmc));
        claims.is_some_and(|claims| may_be(claims, bmc.system_id()).next().is_some())
    }

    /// Returns the message for a Machine whose BMC is claimed by other Machines.
    pub(crate) fn message(&self, name: &MachineName) -> Option<String> {
        const MAX_NAMES_SHOWN: usize = 5;
        let claims = self.claims.get(self.places.get(name)?)?;
        let system = claims.get(name)?.as_deref();
        let others = may_be(claims, system).filter(|other| *other != name);
        let mut names: Vec<&str> = others.map(MachineName::as_str).take(MAX_NAMES_SHOWN + 1).collect();
        if names.is_empty() {
            return None;
        }
        if names.len() > MAX_NAMES_SHOWN {
            names.truncate(MAX_NAMES_SHOWN);
            names.push("others");
        }
        let names = names.join(" and ");
        Some(format!(
            "the BMC is also that of {names}; pxed drives none of them; correct bmc.address or bmc.redfish.systemID"
        ))
    }
}

/// Returns the Machines that may claim this system. A Machine without a system ID claims the only one.
fn may_be<'a>(
    claims: &'a BTreeMap<MachineName, Option<String>>,
    system: Option<&'a str>,
) -> impl Iterator<Item = &'a MachineName> {
    let same = move |theirs: Option<&str>| system.is_none() || theirs.is_none() || system == theirs;
    claims.iter().filter(move |(_, theirs)| same(theirs.as_deref())).map(|(name, _)| name)
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
    use serde_json::json;

    use super::*;

    fn bmc(address: &str, system: Option<&str>) -> BmcSpec {
        let mut bmc = json!({"protocol": "Redfish", "address": address,
            "credentialsSecretRef": {"namespace": "n", "name": "s"}});
        if let Some(system) = system {
            bmc["redfish"] = json!({ "systemID": system });
        }
        serde_json::from_value(bmc).unwrap()
    }

    #[test]
    fn one_system_at_one_address_is_one_machines() {
        let [a, b]: [MachineName; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        for (first, second, expected) in [
            (("https://BMC1/", None), ("bmc1:443", None), true),
            (("bmc1", Some("1")), ("bmc1", None), true),
            (("bmc1", Some("1")), ("bmc1", Some("1")), true),
            (("bmc1", Some("1")), ("bmc1", Some("2")), false),
            (("bmc1", None), ("bmc2", None), false),
            (("bmc1", None), ("bmc1:8443", None), false),
        ] {
            let mut contested = Contested::default();
            contested.claim(&a, Some(&bmc(first.0, first.1)));
            let second = bmc(second.0, second.1);
            assert_eq!(contested.is_claimed(&second), expected);
            let touched = contested.claim(&b, Some(&second));
            assert_eq!(touched, if expected { vec![a.clone()] } else { Vec::new() }, "{first:?} {second:?}");
            let message = contested.message(&a);
            assert_eq!(message.is_some(), expected, "{first:?} {second:?}");
            assert_eq!(contested.message(&b).is_some(), expected);
            assert!(message.is_none_or(
                |message| message.contains("also that of b;") && message.contains("bmc.redfish.systemID")
            ));
        }
    }

    #[test]
    fn changing_a_bmc_touches_machines_that_claim_the_same_bmc() {
        let [a, b, c]: [MachineName; 3] = ["a", "b", "c"].map(|name| name.parse().unwrap());
        let mut contested = Contested::default();
        for (name, address) in [(&a, "bmc1"), (&b, "bmc1"), (&c, "bmc2")] {
            contested.claim(name, Some(&bmc(address, None)));
        }
        assert_eq!(contested.claim(&b, Some(&bmc("bmc2", None))), [a.clone(), c.clone()]);
        assert_eq!(contested.message(&a), None);
        assert_eq!(contested.claim(&b, None), [c]);
        assert_eq!(contested.claim(&a, None), []);
        assert_eq!(contested.claims.len(), 1, "nothing is left of bmc1");
    }
}
