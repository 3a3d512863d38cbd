//! Deviations of BMCs from the standard: one line each, with machine and firmware, cost, and public source. No other
//! code names a vendor.
//!
//! Workarounds that are harmless for all BMCs are not listed here: links and lists that are `null`, boot settings in
//! a settings resource (iDRAC 10), 202 without a task (Supermicro), a redirect to the same path with a slash (iLO 5
//! before 1.40), 400 for a wrong password (iLO), weak ETags where strong ones are required.
//!
//! Pure: no clock, no file, no socket. Callers: `redfish`, `probe`.

use serde_json::Value;

/// A deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quirk {
    /// `BootSourceOverrideMode` falls back to its default unless it is sent along, so what it is now is sent along.
    RepeatBootMode,
    /// PATCH wants `If-Match`, but does not take the ETag that the service itself gave, only `*`.
    MatchAnyEtag,
    /// There is no `GracefulShutdown`: a push of the power button is what asks the operating system to shut down.
    PowerButtonIsGraceful,
}

/// A line of the table.
#[derive(Debug)]
pub struct Line {
    /// Kind of the deviation.
    pub quirk: Quirk,
    /// Stable name for users.
    pub name: &'static str,
    /// Machines and firmware on which it was seen.
    pub seen_on: &'static str,
    /// Public source.
    pub source: &'static str,
    applies: fn(&Facts<'_>) -> bool,
}

/// The table.
pub const TABLE: [Line; 3] = [
    Line {
        quirk: Quirk::RepeatBootMode,
        name: "repeat-boot-mode",
        seen_on: "Supermicro, all firmware so far (by their design)",
        source: "github.com/DMTF/Redfishtool/pull/106",
        applies: |facts| facts.made_by("supermicro") || facts.has_oem("Supermicro"),
    },
    Line {
        quirk: Quirk::MatchAnyEtag,
        name: "match-any-etag",
        seen_on: "AMI MegaRAC firmware, also in Lenovo ThinkSystem SR655 and in machines of Gigabyte",
        source: "github.com/stmcginnis/gofish/issues/171, nv-redfish-quirks 0.22 (bug_rejects_own_etag)",
        applies: |facts| {
            facts.has_oem("Ami") || facts.made_by("ami") || facts.controller_is("ami redfish server")
        },
    },
    Line {
        quirk: Quirk::PowerButtonIsGraceful,
        name: "power-button-is-graceful",
        seen_on: "HPE ProLiant Gen10, iLO 5 (reset types without GracefulShutdown)",
        source: "proliantutils 2.16 (press_pwr_btn, as Ironic's soft power off)",
        applies: |facts| facts.made_by("hpe") || facts.has_oem("Hpe") || facts.has_oem("Hp"),
    },
];

/// Known facts of a BMC when its deviations are looked up.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The service root.
    pub root: &'a Value,
    /// The system.
    pub system: &'a Value,
}

impl Facts<'_> {
    fn text<'v>(value: &'v Value, name: &str) -> &'v str {
        value.get(name).and_then(Value::as_str).unwrap_or_default().trim()
    }

    fn made_by(&self, vendor: &str) -> bool {
        [Self::text(self.root, "Vendor"), Self::text(self.system, "Manufacturer")]
            .iter()
            .any(|name| name.eq_ignore_ascii_case(vendor))
    }

    fn controller_is(&self, product: &str) -> bool {
        Self::text(self.root, "Product").eq_ignore_ascii_case(product)
    }

    fn has_oem(&self, name: &str) -> bool {
        self.root.get("Oem").and_then(|oem| oem.get(name)).is_some_and(Value::is_object)
    }
}

/// The quirks of one BMC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Quirks(Vec<Quirk>);

impl Quirks {
    /// Looks them up.
    pub(crate) fn of(facts: &Facts<'_>) -> Self {
        Self(TABLE.iter().filter(|line| (line.applies)(facts)).map(|line| line.quirk).collect())
    }

    /// Returns true if this deviation is in the set.
    pub(crate) fn have(&self, quirk: Quirk) -> bool {
        self.0.contains(&quirk)
    }

    /// Their lines of the table.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &'static Line> + '_ {
        TABLE.iter().filter(|line| self.have(line.quirk))
    }

    #[cfg(test)]
    pub(crate) fn of_all(quirks: &[Quirk]) -> Self {
        Self(quirks.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quirks_are_found_by_what_the_machine_says_of_itself() {
        for (root, system, expected) in [
            (json!({"Vendor": "Dell", "Oem": {"Dell": {}}}), json!({"Manufacturer": "Dell Inc."}), vec![]),
            (
                json!({"Vendor": "HPE", "Product": "ProLiant DL360 Gen10", "Oem": {"Hpe": {}}}),
                json!({"Manufacturer": "HPE"}),
                vec![Quirk::PowerButtonIsGraceful],
            ),
            (json!({"Oem": {"Hpe": {}}}), json!({}), vec![Quirk::PowerButtonIsGraceful]),
            (
                json!({"Oem": {"Supermicro": {}}}),
                json!({"Manufacturer": "Supermicro"}),
                vec![Quirk::RepeatBootMode],
            ),
            (json!({"Vendor": "Lenovo", "Oem": {"Lenovo": {}}}), json!({"Manufacturer": "Lenovo"}), vec![]),
            (
                json!({"Vendor": "Lenovo", "Oem": {"Ami": {}}}),
                json!({"Manufacturer": "Lenovo"}),
                vec![Quirk::MatchAnyEtag],
            ),
            (json!({"Product": "AMI Redfish Server"}), json!({}), vec![Quirk::MatchAnyEtag]),
            (json!({"Vendor": 7, "Oem": []}), json!(null), vec![]),
        ] {
            assert_eq!(Quirks::of(&Facts { root: &root, system: &system }).0, expected, "{root} {system}");
        }
    }

    #[test]
    fn every_quirk_names_machine_and_source() {
        assert!(TABLE.iter().all(|line| line.seen_on.len() > 10 && line.source.len() > 10));
    }
}
