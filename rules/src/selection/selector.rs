//! Pure: decides whether a selector matches a Machine, and names the unmet requirements. Labels are compared as by an API server.
//!
//! Callers: `choose`; pxed and the controller, for operations with a selector.

use std::collections::BTreeMap;

use bedplate_api::machine::Machine;
use bedplate_api::selector::{FieldRequirement, LabelSelectorRequirement, MachineSelector};

/// Result of comparing a selector with a Machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    /// Requirements that the Machine does not meet, for users.
    pub(crate) unmet: Vec<String>,
    /// Keys of fields that its agent has not reported yet. Whether these requirements hold is not known.
    pub(crate) unknown: Vec<String>,
}

/// A field of a Machine.
enum Field<'a> {
    /// The value; none if the Machine has none.
    Known(Option<&'a str>),
    /// The agent has not reported the hardware yet.
    NotReported,
    /// The selector cannot use this field.
    Unsupported,
}

/// Returns true if a selector matches a Machine. An empty selector matches every Machine. A requirement on a field that is not reported yet
/// does not hold, with any operator.
pub fn matches(selector: &MachineSelector, machine: &Machine) -> bool {
    judge(selector, machine) == Verdict::default()
}

/// Returns true if a selector matches a Machine, or may match it when its hardware is reported.
pub fn may_match(selector: &MachineSelector, machine: &Machine) -> bool {
    judge(selector, machine).unmet.is_empty()
}

/// Compares a selector with a Machine.
pub(crate) fn judge(selector: &MachineSelector, machine: &Machine) -> Verdict {
    let none = BTreeMap::new();
    let mut verdict = Verdict {
        unmet: unmet_labels(selector, machine.metadata.labels.as_ref().unwrap_or(&none)),
        unknown: Vec::new(),
    };
    for requirement in &selector.match_fields {
        let FieldRequirement { key, operator, values } = requirement;
        match field(machine, key) {
            Field::Known(found) if holds(operator, values, found) => {}
            Field::Known(found) => verdict.unmet.push(unmet(key, operator, values, found)),
            Field::NotReported => verdict.unknown.push(key.clone()),
            Field::Unsupported => verdict.unmet.push(format!("{key}, not a selectable field")),
        }
    }
    verdict
}

fn unmet_labels(selector: &MachineSelector, labels: &BTreeMap<String, String>) -> Vec<String> {
    let found = |key: &str| labels.get(key).map(String::as_str);
    let wanted = selector.match_labels.iter().flatten();
    let wanted = wanted.filter(|(key, value)| found(key) != Some(value.as_str()));
    let wanted = wanted.map(|(key, value)| format!("{key}={value}, {}", has(key, found(key))));
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.filter_map(|requirement| {
        let LabelSelectorRequirement { key, operator, values } = requirement;
        let values = values.as_deref().unwrap_or_default();
        (!holds(operator, values, found(key))).then(|| unmet(key, operator, values, found(key)))
    });
    wanted.chain(expressions).collect()
}

fn field<'a>(machine: &'a Machine, key: &str) -> Field<'a> {
    let status = machine.status.as_ref();
    let hardware = status.and_then(|status| status.hardware.as_ref());
    // pxed writes the BMC's part of the hardware. The agent's part always has the processors.
    let reported = hardware.and_then(|hardware| hardware.cpu.as_ref().map(|cpu| (hardware, cpu)));
    match (key, reported) {
        ("metadata.name", _) => Field::Known(machine.metadata.name.as_deref()),
        ("spec.provider", _) => Field::Known(Some(&machine.spec.provider)),
        ("spec.site", _) => Field::Known(Some(machine.spec.site.as_str())),
        ("status.hardware.cpu.architecture", Some((_, cpu))) => Field::Known(cpu.architecture.as_deref()),
        ("status.hardware.product", Some((hardware, _))) => Field::Known(hardware.product.as_deref()),
        ("status.hardware.vendor", Some((hardware, _))) => Field::Known(hardware.vendor.as_deref()),
        ("status.hardware.cpu.architecture" | "status.hardware.product" | "status.hardware.vendor", None) => {
            Field::NotReported
        }
        _ => Field::Unsupported,
    }
}

fn unmet(key: &str, operator: &str, values: &[String], found: Option<&str>) -> String {
    let values = if values.is_empty() { String::new() } else { format!(" ({})", values.join(", ")) };
    format!("{key} {operator}{values}, {}", has(key, found))
}

fn has(key: &str, found: Option<&str>) -> String {
    found.map_or_else(|| format!("has no {key}"), |value| format!("has {key}={value}"))
}

fn holds(operator: &str, values: &[String], found: Option<&str>) -> bool {
    let among = |value: &str| values.iter().any(|wanted| wanted == value);
    match operator {
        "In" => found.is_some_and(among),
        "NotIn" => !found.is_some_and(among),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        // An unknown operator matches nothing.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::selector::MACHINE_FIELDS;
    use serde_json::{Value, json};

    use super::*;

    fn machine(status: &Value) -> Machine {
        serde_json::from_value(json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine",
            "metadata": { "name": "a", "labels": { "rack": "1" } },
            "spec": { "provider": "manual", "site": "north" }, "status": status }))
        .unwrap()
    }

    fn reported() -> Machine {
        machine(&json!({ "hardware": { "cpu": { "architecture": "amd64" }, "vendor": "Acme" } }))
    }

    fn selector(value: &Value) -> MachineSelector {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn fields(key: &str, operator: &str, values: &[&str]) -> MachineSelector {
        selector(&json!({ "matchFields": [{ "key": key, "operator": operator, "values": values }] }))
    }

    #[test]
    fn selectors_match_as_on_an_api_server() {
        for (value, expected) in [
            (json!({}), true),
            (json!({ "matchLabels": { "rack": "1" } }), true),
            (json!({ "matchLabels": { "rack": "1", "row": "2" } }), false),
            (
                json!({ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["1", "2"] }] }),
                true,
            ),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "NotIn", "values": ["1"] }] }), false),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "NotIn", "values": ["1"] }] }), true),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "DoesNotExist" }] }), true),
            (json!({ "matchExpressions": [{ "key": "row", "operator": "Exists" }] }), false),
            (json!({ "matchExpressions": [{ "key": "rack", "operator": "Gt", "values": ["0"] }] }), false),
        ] {
            assert_eq!(matches(&selector(&value), &reported()), expected, "{value}");
        }
    }

    #[test]
    fn h3_selectors_match_fields_of_the_machine() {
        for (key, operator, values, expected) in [
            ("metadata.name", "In", &["a", "b"][..], true),
            ("metadata.name", "NotIn", &["a"], false),
            ("spec.provider", "In", &["pxe"], false),
            ("spec.provider", "NotIn", &["pxe"], true),
            ("spec.site", "In", &["north"], true),
            ("status.hardware.cpu.architecture", "In", &["amd64"], true),
            ("status.hardware.cpu.architecture", "In", &["arm64"], false),
            ("status.hardware.vendor", "Exists", &[], true),
            ("status.hardware.product", "Exists", &[], false),
            ("status.hardware.product", "NotIn", &["X1"], true),
            ("status.hardware.vendor", "Like", &["A*"], false),
            ("status.phase", "In", &["Ready"], false),
            ("status.phase", "NotIn", &["Ready"], false),
        ] {
            let selector = fields(key, operator, values);
            assert_eq!(matches(&selector, &reported()), expected, "{key} {operator} {values:?}");
        }
        let both = json!({ "matchLabels": { "rack": "1" },
            "matchFields": [{ "key": "spec.site", "operator": "In", "values": ["south"] }] });
        assert!(!matches(&selector(&both), &reported()), "labels and fields must match");
        let known = |key: &str| !matches!(field(&reported(), key), Field::Unsupported);
        assert!(MACHINE_FIELDS.into_iter().all(known), "each key of the definition is evaluated");
    }

    #[test]
    fn h3_a_field_that_is_not_reported_yet_matches_nothing_and_may_match() {
        let unreported =
            [machine(&json!({})), machine(&json!({ "hardware": { "bmc": { "vendor": "Acme" } } }))];
        for operator in ["In", "NotIn", "Exists", "DoesNotExist"] {
            let selector = fields("status.hardware.cpu.architecture", operator, &["arm64"]);
            for machine in &unreported {
                assert!(!matches(&selector, machine) && may_match(&selector, machine), "{operator}");
            }
        }
        let elsewhere = selector(&json!({ "matchFields": [
            { "key": "status.hardware.vendor", "operator": "Exists" },
            { "key": "spec.site", "operator": "In", "values": ["south"] }] }));
        assert!(!may_match(&elsewhere, &unreported[0]), "another requirement is not met");
    }

    #[test]
    fn unmet_requirements_are_listed_with_the_actual_values() {
        let selector = selector(&json!({
            "matchLabels": { "rack": "2", "row": "b" },
            "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["3", "4"] },
                { "key": "gpu", "operator": "Exists" }],
            "matchFields": [{ "key": "spec.provider", "operator": "In", "values": ["pxe"] },
                { "key": "status.hardware.product", "operator": "Exists" }],
        }));
        let expected = [
            "rack=2, has rack=1",
            "row=b, has no row",
            "rack In (3, 4), has rack=1",
            "gpu Exists, has no gpu",
            "spec.provider In (pxe), has spec.provider=manual",
            "status.hardware.product Exists, has no status.hardware.product",
        ];
        assert_eq!(judge(&selector, &reported()).unmet, expected);
    }
}
