//! Pure: the kubelet's command line, from the version's joinConfiguration or initConfiguration, its
//! kubeletExtraArgs, and required arguments.

use bedplate_api::configuration::KubeletArgument;
use serde_json::{Map, Value, json};

use crate::field_error::{FieldError, FieldErrors};
use crate::release::Format;

/// Arguments that a version must not set, and the alternative.
const OWNED: [(&str, &str); 8] = [
    ("node-labels", "use nodeLabels"),
    ("register-with-taints", "use taints"),
    ("provider-id", "the Machine's name is used"),
    ("hostname-override", "a Node has the name of its Machine"),
    ("container-runtime-endpoint", "the node image defines its socket"),
    ("config", "kubeadm writes it; use kubeletConfiguration"),
    ("kubeconfig", "kubeadm writes it"),
    ("bootstrap-kubeconfig", "kubeadm writes it"),
];

/// One argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl Argument {
    pub(crate) fn new(name: &str, value: impl Into<String>) -> Self {
        Self { name: name.to_owned(), value: value.into() }
    }
}

/// Returns the arguments of a version. `theirs` is a nodeRegistration's kubeletExtraArgs at `path`, in the
/// format of the release.
pub(crate) fn of_version(
    theirs: Option<&Value>,
    path: &str,
    given: &[KubeletArgument],
    format: Format,
    errors: &mut FieldErrors,
) -> Vec<Argument> {
    let mut all = theirs.map(|theirs| read(theirs, path, format, errors)).unwrap_or_default();
    all.extend(given.iter().map(|argument| Argument::new(&argument.name, argument.value.as_str())));
    for argument in &all {
        let owned = OWNED.iter().find(|(name, _)| *name == argument.name);
        if let Some((name, instead)) = owned {
            errors.push(FieldError::Misplaced { field: format!("the kubelet argument {name}"), instead });
        }
        // kubeadm writes all arguments into one line of an environment file, which systemd splits at spaces.
        if argument.value.chars().any(|c| c.is_whitespace() || c.is_control() || "\"'\\".contains(c)) {
            errors.push(FieldError::InvalidField {
                field: format!("the kubelet argument {}", argument.name),
                expected: "must not contain spaces, quotes or backslashes, which kubeadm cannot pass on"
                    .to_owned(),
            });
        }
    }
    all
}

/// Reads arguments like kubeadm of this format.
fn read(value: &Value, path: &str, format: Format, errors: &mut FieldErrors) -> Vec<Argument> {
    let mut wrong = |expected: &str| {
        errors.push(FieldError::InvalidField { field: path.to_owned(), expected: expected.to_owned() });
        Vec::new()
    };
    match (format, value) {
        (Format::V1Beta3, Value::Object(fields)) => {
            let all: Option<Vec<Argument>> =
                fields.iter().map(|(name, value)| Some(Argument::new(name, value.as_str()?))).collect();
            all.unwrap_or_else(|| wrong("must have strings as values; put numbers, true and false in quotes"))
        }
        (Format::V1Beta4, Value::Array(items)) => {
            let argument = |item: &Value| {
                let (name, value) = (item.get("name")?.as_str()?, item.get("value")?.as_str()?);
                Some(Argument::new(name, value))
            };
            let all: Option<Vec<Argument>> = items.iter().map(argument).collect();
            all.unwrap_or_else(|| wrong("must be a list of name and value, both strings"))
        }
        (Format::V1Beta3, _) => wrong("must be a map of names to values up to Kubernetes 1.30"),
        (Format::V1Beta4, _) => wrong("must be a list of name and value from Kubernetes 1.31 on"),
    }
}

/// Renders arguments for this format.
pub(crate) fn render(arguments: &[Argument], format: Format, errors: &mut FieldErrors) -> Value {
    match format {
        Format::V1Beta3 => {
            let mut map = Map::new();
            for Argument { name, value } in arguments {
                if map.insert(name.clone(), Value::from(value.as_str())).is_some() {
                    errors.push(FieldError::RepeatedArgument { name: name.clone() });
                }
            }
            Value::Object(map)
        }
        Format::V1Beta4 => {
            arguments.iter().map(|Argument { name, value }| json!({"name": name, "value": value})).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(theirs: &Value, given: &[(&str, &str)], format: Format) -> Result<Value, String> {
        let given: Vec<KubeletArgument> = given
            .iter()
            .map(|(name, value)| KubeletArgument { name: (*name).into(), value: (*value).into() })
            .collect();
        let mut errors = FieldErrors::default();
        let theirs = (!theirs.is_null()).then_some(theirs);
        let all = of_version(theirs, "joinConfiguration.x", &given, format, &mut errors);
        let value = render(&all, format, &mut errors);
        errors.or(value).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_a_map_up_to_1_30_and_a_list_from_1_31() {
        let given = [("v", "4"), ("max-pods", "50")];
        assert_eq!(rendered(&Value::Null, &given, Format::V1Beta3), Ok(json!({"v": "4", "max-pods": "50"})));
        assert_eq!(
            rendered(&json!([{"name": "a", "value": "1"}]), &given, Format::V1Beta4),
            Ok(
                json!([{"name": "a", "value": "1"}, {"name": "v", "value": "4"}, {"name": "max-pods", "value": "50"}])
            )
        );
    }

    #[test]
    fn repeated_argument_is_an_error_up_to_1_30_only() {
        let given = [("feature-gates", "A=true"), ("feature-gates", "B=true")];
        let said = rendered(&Value::Null, &given, Format::V1Beta3).unwrap_err();
        assert!(said.contains("feature-gates") && said.contains("1.31"), "{said}");
        assert!(rendered(&Value::Null, &given, Format::V1Beta4).is_ok());
        // Also when one comes from the joinConfiguration.
        assert!(rendered(&json!({"v": "4"}), &[("v", "5")], Format::V1Beta3).is_err());
    }

    #[test]
    fn argument_that_is_not_the_versions_to_set_is_refused() {
        for (name, _) in OWNED {
            let said = rendered(&Value::Null, &[(name, "x")], Format::V1Beta4).unwrap_err();
            assert!(said.contains(name), "{said}");
            assert!(rendered(&json!({name: "x"}), &[], Format::V1Beta3).is_err());
        }
    }

    #[test]
    fn form_of_the_other_format_is_refused_with_its_path() {
        for (theirs, format) in [
            (json!({"v": "4"}), Format::V1Beta4),
            (json!([{"name": "v", "value": "4"}]), Format::V1Beta3),
            (json!({"v": 4}), Format::V1Beta3),
            (json!([{"name": "v"}]), Format::V1Beta4),
            (json!("v"), Format::V1Beta4),
        ] {
            let said = rendered(&theirs, &[], format).unwrap_err();
            assert!(said.starts_with("joinConfiguration.x "), "{said}");
        }
    }

    #[test]
    fn value_that_would_fall_into_pieces_is_refused() {
        for value in ["a b", "a\n", "a\"", "a'", "a\\"] {
            assert!(rendered(&Value::Null, &[("v", value)], Format::V1Beta4).is_err(), "{value:?}");
        }
        assert!(rendered(&Value::Null, &[("feature-gates", "A=true,B=false")], Format::V1Beta4).is_ok());
    }
}
