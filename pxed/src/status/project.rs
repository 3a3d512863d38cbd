//! Pure: the fields of a Machine's status that are pxed's to write (docs/design/rules.md, "Who writes what").

use bedplate_api::machine::{
    Hardware, Machine, MachineStatus, PROVIDER_PXE, PowerState, PowerStatus, condition_type,
};
use kube::Resource;
use serde_json::{Value, json};

/// A part of pxed's fields with a writer of its own: what one pxed applies does not take away what another applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Part that every pxed of a site writes: `boot`, Booted, Enrolled.
    Boot,
    /// Part that only its leader writes: `power`, `hardware.bmc`, BMCReachable, PoweredOn.
    Power,
}

impl Part {
    /// Both, in the order in which they are written. Power is first: it may only be written before the end of the tenure.
    pub const ALL: [Self; 2] = [Self::Power, Self::Boot];

    /// Returns the field manager of the part in server-side apply (docs/design/rules.md, "Who writes what").
    pub const fn field_manager(self) -> &'static str {
        match self {
            Self::Boot => "pxed",
            Self::Power => "pxed-power",
        }
    }

    /// The conditions.
    pub const fn conditions(self) -> [&'static str; 2] {
        match self {
            Self::Boot => [condition_type::BOOTED, condition_type::ENROLLED],
            Self::Power => [condition_type::BMC_REACHABLE, condition_type::POWERED_ON],
        }
    }

    /// A status with this part alone.
    pub fn of(self, status: &MachineStatus) -> MachineStatus {
        let mut conditions = status.conditions.clone();
        conditions.retain(|c| self.conditions().contains(&c.type_.as_str()));
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        let part = MachineStatus { conditions, ..MachineStatus::default() };
        match self {
            Self::Boot => MachineStatus { boot: status.boot.clone(), ..part },
            Self::Power => {
                let bmc = status.hardware.as_ref().and_then(|hardware| hardware.bmc.clone());
                let hardware = bmc.map(|bmc| Hardware { bmc: Some(bmc), ..Hardware::default() });
                MachineStatus { power: status.power.clone(), hardware, ..part }
            }
        }
    }

    /// `status` with this part replaced by that of `own`.
    pub fn put(self, status: &mut MachineStatus, own: &MachineStatus) {
        let own = self.of(own);
        status.conditions.retain(|c| !self.conditions().contains(&c.type_.as_str()));
        status.conditions.extend(own.conditions);
        match self {
            Self::Boot => status.boot = own.boot,
            Self::Power => {
                status.power = own.power;
                let bmc = own.hardware.and_then(|hardware| hardware.bmc);
                match (&mut status.hardware, bmc) {
                    (Some(hardware), bmc) => hardware.bmc = bmc,
                    (None, Some(bmc)) => {
                        status.hardware = Some(Hardware { bmc: Some(bmc), ..Hardware::default() });
                    }
                    (None, None) => {}
                }
            }
        }
    }
}

/// Parts to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts {
    /// [`Part::Boot`].
    pub boot: bool,
    /// [`Part::Power`].
    pub power: bool,
}

impl Parts {
    /// Both.
    pub const BOTH: Self = Self { boot: true, power: true };

    /// In which parts two statuses differ.
    pub fn changed(before: &MachineStatus, after: &MachineStatus) -> Self {
        let differs = |part: Part| part.of(before) != part.of(after);
        Self { boot: differs(Part::Boot), power: differs(Part::Power) }
    }

    /// These and those.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { boot: self.boot || other.boot, power: self.power || other.power }
    }

    /// Returns true if the part is included.
    pub fn has(self, part: Part) -> bool {
        match part {
            Part::Boot => self.boot,
            Part::Power => self.power,
        }
    }
}

/// A status with pxed's fields alone.
fn own_fields(status: &MachineStatus) -> MachineStatus {
    let mut own = Part::Boot.of(status);
    Part::Power.put(&mut own, status);
    own.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    own
}

/// Returns pxed's fields of this Machine. Another program provisions a Machine that pxed does not netboot. That program writes the boot,
/// and the power too if there is no BMC.
pub fn owned(machine: &Machine, status: &MachineStatus) -> MachineStatus {
    let mut own = own_fields(status);
    if machine.spec.provider != PROVIDER_PXE {
        own.boot = None;
        own.conditions.retain(|c| c.type_ != condition_type::BOOTED);
    }
    if drives(machine, status) { own } else { Part::Boot.of(&own) }
}

/// Puts pxed's fields of this Machine into `status`; its power only if `power`.
pub(crate) fn put_owned(machine: &Machine, status: &mut MachineStatus, own: &MachineStatus, power: bool) {
    if machine.spec.provider == PROVIDER_PXE {
        Part::Boot.put(status, own);
    } else {
        status.conditions.retain(|c| c.type_ != condition_type::ENROLLED);
        status
            .conditions
            .extend(own.conditions.iter().filter(|c| c.type_ == condition_type::ENROLLED).cloned());
    }
    if power && drives(machine, status) {
        Part::Power.put(status, own);
    }
}

/// Returns true if pxed writes the power of this Machine. `status`: that of the object. pxed also removes its reports about a BMC that was removed:
/// only pxed writes `BMCReachable`.
fn drives(machine: &Machine, status: &MachineStatus) -> bool {
    let reports = || status.conditions.iter().any(|c| c.type_ == condition_type::BMC_REACHABLE);
    machine.spec.provider == PROVIDER_PXE || machine.spec.bmc.is_some() || reports()
}

/// Removes the reports about a BMC that the Machine no longer has. Of a machine that pxed powers on by itself, the last action and the used token stay:
/// they count if it has a BMC again (O7, H2).
pub(crate) fn forget_bmc(machine: &Machine, status: &mut MachineStatus) {
    let power = status.power.take().filter(|_| machine.spec.provider == PROVIDER_PXE);
    Part::Power.put(status, &MachineStatus::default());
    status.hardware.take_if(|hardware| *hardware == Hardware::default());
    let power = power.filter(|power| power.last_action.is_some() || power.takeover_token.is_some());
    status.power = power.map(|power| PowerStatus {
        state: PowerState::Unknown,
        observed_time: None,
        attempts: None,
        next_attempt_time: None,
        ..power
    });
}

/// Returns the body for the API server: a part of pxed's fields of this very Machine. The server rejects it for a later Machine of the same name, which has
/// another UID.
///
/// # Errors
/// The status cannot be written as JSON.
pub(crate) fn apply_body(
    name: &str,
    uid: &str,
    status: &MachineStatus,
    part: Part,
) -> Result<Value, serde_json::Error> {
    Ok(json!({
        "apiVersion": Machine::api_version(&()),
        "kind": Machine::kind(&()),
        "metadata": { "name": name, "uid": uid },
        "status": serde_json::to_value(part.of(status))?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> MachineStatus {
        let condition = |kind: &str| {
            json!({ "type": kind, "status": "True", "reason": "R", "message": kind,
                "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let conditions = ["Ready", "PoweredOn", "Booted", "BMCReachable", "Enrolled"].map(condition);
        serde_json::from_value(json!({
            "phase": "Ready", "conditions": conditions, "power": { "state": "On" }, "boot": { "attempts": 1 },
            "hardware": { "vendor": "V", "bmc": { "vendor": "B" } },
        }))
        .unwrap()
    }

    fn names(value: &Value) -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn conditions_of_each_part_are_those_of_the_table_of_writers() {
        use bedplate_api::writers::{MACHINE, Writer, conditions};
        for (part, writer) in [(Part::Boot, Writer::Pxed), (Part::Power, Writer::PxedPower)] {
            assert_eq!(conditions(MACHINE, &[writer])[..], part.conditions()[..], "{part:?}");
        }
    }

    #[test]
    fn the_two_writers_share_no_field_and_write_no_other() {
        let body = |part| apply_body("a", "u", &status(), part).unwrap()["status"].clone();
        let (boot, power) = (body(Part::Boot), body(Part::Power));
        assert_eq!(names(&boot), ["boot", "conditions"]);
        assert_eq!(names(&power), ["conditions", "hardware", "power"]);
        assert_eq!(names(&power["hardware"]), ["bmc"]);
        assert_ne!(Part::Boot.field_manager(), Part::Power.field_manager());
        let both: Vec<_> = Part::ALL.into_iter().flat_map(Part::conditions).collect();
        assert_eq!(both, ["BMCReachable", "PoweredOn", "Booted", "Enrolled"]);
    }

    #[test]
    fn pxed_does_not_write_fields_of_the_provider() {
        let machine = |provider: &str, has_bmc: bool| -> Machine {
            let bmc = json!({ "protocol": "Redfish", "address": "b", "credentialsSecretRef": { "namespace": "n", "name": "s" } });
            let mut spec = json!({ "provider": provider });
            if has_bmc {
                spec["bmc"] = bmc;
            }
            let object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" }, "spec": spec });
            serde_json::from_value(object).unwrap()
        };
        let types = |status: &MachineStatus| {
            let mut types: Vec<_> = status.conditions.iter().map(|c| c.type_.clone()).collect();
            types.sort();
            types.join(" ")
        };
        // A provider writes `PoweredOn` of a Machine without a BMC, and never `BMCReachable`.
        let without = |status: &mut MachineStatus| status.conditions.retain(|c| c.type_ != "BMCReachable");
        for (provider, has_bmc, reports, boot, power, conditions) in [
            ("pxe", false, false, true, true, "Booted Enrolled PoweredOn"),
            ("azure", false, false, false, false, "Enrolled"),
            ("azure", false, true, false, true, "BMCReachable Enrolled PoweredOn"),
            ("azure", true, true, false, true, "BMCReachable Enrolled PoweredOn"),
            ("manual", true, true, false, true, "BMCReachable Enrolled PoweredOn"),
        ] {
            let machine = machine(provider, has_bmc);
            let status = || {
                let mut status = status();
                if !reports {
                    without(&mut status);
                }
                status
            };
            let own = owned(&machine, &status());
            assert_eq!((own.boot.is_some(), own.power.is_some()), (boot, power), "{provider} {has_bmc}");
            assert_eq!(types(&own), conditions, "{provider} {has_bmc}");
            // Fields of other writers stay, and fields of pxed replace the former ones.
            let mut shown = status();
            put_owned(&machine, &mut shown, &MachineStatus::default(), true);
            assert_eq!((shown.boot.is_none(), shown.power.is_none()), (boot, power), "{provider} {has_bmc}");
            assert!(!types(&shown).contains("Enrolled"), "{provider} {has_bmc}");
        }
    }

    #[test]
    fn a_part_is_put_in_place_of_the_same_part_alone() {
        let mut other = MachineStatus::default();
        Part::Power.put(&mut other, &status());
        assert_eq!(other, Part::Power.of(&status()));
        assert_eq!(Parts::changed(&other, &status()), Parts { boot: true, power: false });
        let mut cleared = status();
        Part::Power.put(&mut cleared, &MachineStatus::default());
        assert_eq!(Parts::changed(&cleared, &status()), Parts { boot: false, power: true });
        assert_eq!(cleared.hardware.unwrap().vendor.as_deref(), Some("V"));
    }

    #[test]
    fn reports_about_a_removed_bmc_are_removed_and_the_last_action_stays() {
        let action = json!({ "action": "PowerOff", "time": "2026-01-01T00:00:00Z" });
        let power = json!({ "state": "Off", "attempts": 1, "observedTime": "2026-01-01T00:00:00Z",
            "nextAttemptTime": "2026-01-01T00:00:00Z", "lastAction": action, "takeoverToken": "t" });
        let machine = |provider: &str| -> Machine {
            serde_json::from_value(json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
                "metadata": { "name": "a" }, "spec": { "provider": provider } }))
            .unwrap()
        };
        let forgotten = |provider: &str, power: &Value| {
            let mut status = status();
            status.power = serde_json::from_value(power.clone()).unwrap();
            forget_bmc(&machine(provider), &mut status);
            assert_eq!(status.hardware.as_ref().unwrap().vendor.as_deref(), Some("V"), "the agent's");
            assert!(status.conditions.iter().all(|c| !Part::Power.conditions().contains(&c.type_.as_str())));
            serde_json::to_value(Part::Power.of(&status)).unwrap()
        };
        let kept = json!({ "state": "Unknown", "lastAction": action, "takeoverToken": "t" });
        assert_eq!(forgotten("pxe", &power), json!({ "power": kept }));
        assert_eq!(forgotten("pxe", &json!({ "state": "On" })), json!({}), "nothing to remember");
        assert_eq!(forgotten("azure", &power), json!({}), "power is the provider's now");
    }
}
