//! Pure: a manifest file's text -> the Machines, MachineOperations and MachineConfigurations in it, or every error
//! with line and field.
//!
//! YAML or JSON, several documents, `List` and the lists of these kinds unrolled. Other kinds are skipped with a
//! note. Versions are an error, because only pxed writes them (V1). A file with an error yields nothing: half a file
//! is worse than its last good content. Called by `manifests`, and by the fuzzer.

use std::fmt;

use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::Machine;
use bedplate_api::operation::MachineOperation;
use bedplate_api::version::MachineConfigurationVersion;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::parallel::for_each;
use super::schema::{Finding, check_configuration, check_machine, check_operation};
use super::yaml::{Document, Lines, read_documents};

/// Larger files are refused unread: about ten thousand Machines.
pub const MAX_BYTES: usize = 16 << 20;

/// Minimum number of documents for which starting a thread pays off.
const WORTH_A_THREAD: usize = 16;

/// Content of a manifest file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Manifest {
    /// Machines with the line that each begins at.
    pub machines: Vec<(u64, Machine)>,
    /// MachineOperations with the line that each begins at.
    pub operations: Vec<(u64, MachineOperation)>,
    /// MachineConfigurations with the line that each begins at.
    pub configurations: Vec<(u64, MachineConfiguration)>,
    /// Skipped objects of other kinds: line and kind.
    pub ignored: Vec<(u64, String)>,
}

/// Error in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestProblem {
    /// The line, from 1.
    pub line: u64,
    /// The field's path in its object; empty for the object as a whole.
    pub field: String,
    /// Description of the error.
    pub message: String,
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, field, message } = self;
        if field.is_empty() {
            write!(f, "{line}: {message}")
        } else {
            write!(f, "{line}: {field}: {message}")
        }
    }
}

/// Parses the text of a manifest file.
///
/// # Errors
/// All errors in the text, in the order of their lines.
pub fn read_manifest(text: &str) -> Result<Manifest, Vec<ManifestProblem>> {
    if text.len() > MAX_BYTES {
        let message = format!("the file is larger than {} MiB", MAX_BYTES >> 20);
        return Err(vec![ManifestProblem { line: 1, field: String::new(), message }]);
    }
    let documents = read_documents(text).map_err(|problem| {
        vec![ManifestProblem { line: problem.line, field: String::new(), message: problem.message }]
    })?;
    let mut parts: Vec<Part> =
        documents.into_iter().map(|document| Part { document: Some(document), ..Part::default() }).collect();
    for_each(&mut parts, WORTH_A_THREAD, Part::read);
    let mut manifest = Manifest::default();
    let mut problems = Vec::new();
    for part in parts {
        manifest.machines.extend(part.manifest.machines);
        manifest.operations.extend(part.manifest.operations);
        manifest.configurations.extend(part.manifest.configurations);
        manifest.ignored.extend(part.manifest.ignored);
        problems.extend(part.problems);
    }
    problems.sort_by_key(|problem: &ManifestProblem| problem.line);
    if problems.is_empty() { Ok(manifest) } else { Err(problems) }
}

/// One document and what it was found to hold.
#[derive(Default)]
struct Part {
    document: Option<Document>,
    manifest: Manifest,
    problems: Vec<ManifestProblem>,
}

impl Part {
    fn read(&mut self) {
        let Some(Document { value, lines }) = self.document.take() else { return };
        read_object(value, "", &lines, &mut self.manifest, &mut self.problems);
    }
}

/// A kind that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Machine,
    Operation,
    Configuration,
    /// MachineConfigurationVersion, which is rejected.
    Version,
}

impl Kind {
    fn of(kind: &str, api_version: &str) -> Option<Self> {
        let kinds = [
            (Machine::kind(&()), Self::Machine),
            (MachineOperation::kind(&()), Self::Operation),
            (MachineConfiguration::kind(&()), Self::Configuration),
            (MachineConfigurationVersion::kind(&()), Self::Version),
        ];
        let found = kinds.into_iter().find(|(known, _)| known == kind).map(|(_, kind)| kind);
        found.filter(|_| api_version.starts_with("bedplate.dev/"))
    }

    /// Returns true if this kind is a list of objects, which are checked one by one.
    fn is_list(kind: &str) -> bool {
        ["List", "MachineList", "MachineOperationList", "MachineConfigurationList"].contains(&kind)
    }

    /// Every field that the API server would not take.
    fn check(self, object: &Value) -> Vec<Finding> {
        match self {
            Self::Machine => check_machine(object),
            Self::Operation => check_operation(object),
            Self::Configuration => check_configuration(object),
            Self::Version => {
                let message = "a version cannot be in a manifest; write a MachineConfiguration, from which pxed creates versions";
                vec![("kind".to_owned(), message.to_owned())]
            }
        }
    }

    /// Adds an object without errors to the manifest.
    fn take(self, (line, object): (u64, Value), manifest: &mut Manifest) -> Result<(), serde_json::Error> {
        match self {
            Self::Machine => keep(&mut manifest.machines, line, object),
            Self::Operation => keep(&mut manifest.operations, line, object),
            Self::Configuration => keep(&mut manifest.configurations, line, object),
            Self::Version => Ok(()),
        }
    }
}

fn keep<T: DeserializeOwned>(
    list: &mut Vec<(u64, T)>,
    line: u64,
    object: Value,
) -> Result<(), serde_json::Error> {
    serde_json::from_value(object).map(|read| list.push((line, read)))
}

fn read_object(
    mut object: Value,
    prefix: &str,
    lines: &Lines,
    manifest: &mut Manifest,
    problems: &mut Vec<ManifestProblem>,
) {
    let line = line_of(lines, prefix);
    let mut problem = |field: &str, message: String| {
        problems.push(ManifestProblem {
            line: line_of(lines, &join(prefix, field)),
            field: join(prefix, field),
            message,
        });
    };
    let text = |object: &Value, key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
    let (Some(version), Some(kind)) = (text(&object, "apiVersion"), text(&object, "kind")) else {
        problem("", "is not a Kubernetes object; set apiVersion and kind".to_owned());
        return;
    };
    if Kind::is_list(&kind) && prefix.is_empty() {
        let items = object.get_mut("items").map(Value::take);
        for (index, item) in items.as_ref().and_then(Value::as_array).into_iter().flatten().enumerate() {
            read_object(item.clone(), &format!("items[{index}]"), lines, manifest, problems);
        }
        return;
    }
    let Some(known) = Kind::of(&kind, &version) else {
        manifest.ignored.push((line, kind));
        return;
    };
    if version != Machine::api_version(&()) {
        problem("apiVersion", format!("{version:?} is not known; write {:?}", Machine::api_version(&())));
        return;
    }
    drop_nulls(&mut object);
    if let Some(object) = object.as_object_mut() {
        // Written by programs, not read from files.
        object.remove("status");
    }
    if let Err((field, message)) = check_name(&object, known) {
        problem(field, message);
    }
    for (field, message) in known.check(&object) {
        problem(&field, message);
    }
    if problems.is_empty()
        && let Err(error) = known.take((line, object), manifest)
    {
        problems.push(ManifestProblem { line, field: prefix.to_owned(), message: error.to_string() });
    }
}

/// Checks that the object has a valid name; for a Machine, its rules check the form.
fn check_name(object: &Value, kind: Kind) -> Result<(), (&'static str, String)> {
    match object.pointer("/metadata/name").and_then(Value::as_str) {
        None => Err(("", "metadata.name is missing".to_owned())),
        Some(name) if kind != Kind::Machine && !is_object_name(name) => Err((
            "metadata.name",
            format!("{name:?} is not a valid name; use at most 253 of a-z, 0-9, '-' and '.'"),
        )),
        Some(_) => Ok(()),
    }
}

/// Returns true if an API server accepts this as the name of an object (RFC 1123 subdomain).
pub(crate) fn is_object_name(name: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |label: &str| {
        label.bytes().all(|b| edge(b) || b == b'-')
            && label.bytes().next().is_some_and(edge)
            && label.bytes().last().is_some_and(edge)
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn join(prefix: &str, field: &str) -> String {
    match (prefix.is_empty(), field.is_empty()) {
        (true, _) => field.to_owned(),
        (_, true) => prefix.to_owned(),
        (false, false) => format!("{prefix}.{field}"),
    }
}

/// Returns the line of a field, or of the nearest enclosing field in the file.
fn line_of(lines: &Lines, path: &str) -> u64 {
    let mut path = path;
    loop {
        if let Some(line) = lines.get(path) {
            return (*line).max(1);
        }
        let Some(end) = path.rfind(['.', '[']) else { break };
        path = path.get(..end).unwrap_or_default();
    }
    lines.get("").copied().unwrap_or(1).max(1)
}

/// `field:` without a value means that it is not given.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
apiVersion: bedplate.dev/v1alpha1
kind: Machine
metadata:
  name: node-1
spec:
  provider: pxe
  pxe:
    interfaces:
    - macAddress: 52:54:00:00:00:01
      addresses: [10.7.0.21/24]
    kernelArguments:
    - console=ttyS0
";

    const KUBERNETES: &str =
        "{version: v1.34.4, joinConfiguration: {discovery: {file: {kubeConfigPath: /etc/join.conf}}}}";

    fn configuration() -> String {
        format!(
            "apiVersion: bedplate.dev/v1alpha1\nkind: MachineConfiguration\nmetadata:\n  name: workers\nspec:\n  template:\n    \
             image: {{reference: 'r.example/node:1', allowTag: true}}\n    kubernetes: {KUBERNETES}\n"
        )
    }

    fn problems(text: &str) -> Vec<String> {
        read_manifest(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn documents_json_and_lists_are_read_and_other_kinds_noted() {
        let json = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"bedplate.dev/v1alpha1","kind":"Machine",
            "metadata":{"name":"node-2"},"spec":{"provider":"pxe","pxe":{"interfaces":[{"macAddress":"5254.0000.0002"}]}}}]}"#;
        let other = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n";
        let manifest = read_manifest(&format!("{GOOD}---\n{other}---\n{json}\n---\n")).unwrap();
        let found: Vec<_> =
            manifest.machines.iter().map(|(line, m)| (*line, m.metadata.name.clone().unwrap())).collect();
        assert_eq!(found, [(1, "node-1".to_owned()), (19, "node-2".to_owned())]);
        assert_eq!(manifest.ignored, [(14, "ConfigMap".to_owned())]);
    }

    #[test]
    fn every_error_is_named_with_line_and_field() {
        let text = GOOD
            .replace("52:54:00:00:00:01", "53:54:00:00:00:01")
            .replace("provider: pxe", "provider: pxe\n  sit: lab")
            .replace("addresses:", "adresses:")
            .replace("- console=ttyS0", "- 1");
        let found = problems(&text);
        assert_eq!(
            found[..3],
            [
                "7: spec.sit: is not a known field; did you mean \"site\"?".to_owned(),
                "11: spec.pxe.interfaces[0].adresses: is not a known field; did you mean \"addresses\"?"
                    .to_owned(),
                "13: spec.pxe.kernelArguments[0]: is a number: put it in quotes".to_owned(),
            ],
            "{found:?}"
        );
    }

    #[test]
    fn rules_between_fields_hold_as_on_an_api_server() {
        let no_pxe = "apiVersion: bedplate.dev/v1alpha1\nkind: Machine\nmetadata:\n  name: a\nspec:\n  provider: pxe\n";
        assert_eq!(
            problems(no_pxe),
            ["6: spec: spec.pxe must be set when spec.provider is pxe, and may only be set then"]
        );
        let twice =
            GOOD.replace("    kernelArguments", "    - macAddress: 52-54-00-00-00-01\n    kernelArguments");
        let found = problems(&twice);
        assert!(found[0].contains("two interfaces must not have the same macAddress"), "{found:?}");
        let multicast = problems(&GOOD.replace("52:54:00:00:00:01", "53:54:00:00:00:01"));
        assert!(multicast[0].starts_with("9: spec.pxe.interfaces[0].macAddress: "), "{multicast:?}");
        let name = problems(&GOOD.replace("node-1", "Node_1"));
        assert!(name[0].contains("metadata.name must be a host name"), "{name:?}");
    }

    #[test]
    fn a_value_outside_an_enum_is_named_with_the_values_that_are_allowed() {
        let bmc = "  bmc:\n    protocol: Redfish\n    address: bmc.example\n    credentialsSecretRef: {namespace: bmc, name: a}\n    \
            redfish: {tls: {mode: Insecure}}\n    bootSource: PXE\n";
        let good =
            format!("{GOOD}    firmware: Auto\n    bootProtocol: TFTP\n    stateDisk: {{byID: x}}\n{bmc}");
        assert!(read_manifest(&good).is_ok(), "{:?}", problems(&good));
        for (good_text, text, expected) in [
            (
                "firmware: Auto",
                "firmware: auto",
                "spec.pxe.firmware: \"auto\" is not one of Auto, BIOS, UEFI",
            ),
            (
                "Protocol: TFTP",
                "Protocol: tftp",
                "spec.pxe.bootProtocol: \"tftp\" is not one of Auto, TFTP, HTTP",
            ),
            ("byID", "byId", "spec.pxe.stateDisk.byId: is not a known field; did you mean \"byID\"?"),
            ("l: Redfish", "l: redfish", "spec.bmc.protocol: \"redfish\" is not one of Redfish, IPMI"),
            ("Source: PXE", "Source: pxe", "spec.bmc.bootSource: \"pxe\" is not one of PXE, HTTP"),
            (
                "Insecure",
                "insecure",
                "spec.bmc.redfish.tls.mode: \"insecure\" is not one of Pin, CA, Insecure",
            ),
            (
                "redfish: {tls",
                "ipmi: {privilege: user}\n    redfish: {tls",
                "\"user\" is not one of User, Operator, Administrator",
            ),
            (
                "redfish: {tls: {mode: Insecure}}",
                "tls: {mode: Insecure}",
                "spec.bmc.tls: is not a known field; ",
            ),
            ("redfish: {tls: {mode: Insecure}}", "systemId: 1", "spec.bmc.systemId: is not a known field; "),
        ] {
            let text = good.replace(good_text, text);
            let found = problems(&text);
            assert!(found[0].contains(expected), "{expected}: {found:?}");
        }
        let union = problems(&good.replace("    bootSource", "    ipmi: {}\n    bootSource"));
        assert!(union[0].contains("bmc.redfish may only be set when bmc.protocol is Redfish"), "{union:?}");
    }

    #[test]
    fn operations_next_to_machines_are_checked_by_their_own_rules() {
        let operation = "apiVersion: bedplate.dev/v1alpha1\nkind: MachineOperation\nmetadata:\n  name: cycle-1\nspec:\n  \
            operationName: powerCycle\n  machineRef: {name: node-1}\n";
        let manifest = read_manifest(&format!("{GOOD}---\n{operation}")).unwrap();
        assert_eq!((manifest.machines.len(), manifest.operations[0].0), (1, 14));
        assert_eq!(manifest.operations[0].1.spec.operation_name, "powerCycle");
        let found = problems(&operation.replace("machineRef", "machinRef"));
        assert_eq!(found[0], "7: spec.machinRef: is not a known field; did you mean \"machineRef\"?");
        let found = problems(&operation.replace("  machineRef: {name: node-1}\n", ""));
        assert!(found[0].contains("exactly one of machineRef and machineSelector"), "{found:?}");
        let found = problems(&operation.replace("cycle-1", "Cycle_1"));
        assert!(found[0].starts_with("4: metadata.name: "), "{found:?}");
    }

    #[test]
    fn v1_configurations_are_validated_and_versions_rejected() {
        let configuration = configuration();
        let manifest = read_manifest(&format!("{GOOD}---\n{configuration}")).unwrap();
        assert_eq!(manifest.configurations[0].0, 14);
        assert_eq!(manifest.configurations[0].1.spec.revision_history_limit, 10);
        let found = problems(&configuration.replace("version: v1.34.4", "version: '1.34'"));
        assert!(
            found[0].starts_with("8: spec.template.kubernetes.version: \"1.34\" does not match"),
            "{found:?}"
        );
        let found = problems(&configuration.replace(", allowTag: true", ""));
        assert!(found[0].contains("must have a digest (@sha256:...) when allowTag is not true"), "{found:?}");
        let found = problems(&configuration.replace("template:", "templat:"));
        assert!(found[1].contains("did you mean \"template\"?"), "{found:?}");
        let free = "{version: v1.34.4, role: ControlPlane, initConfiguration: {any: [1]}}";
        let free = configuration.replace(KUBERNETES, free);
        assert!(read_manifest(&free).is_ok(), "kubeadm's fields are kubeadm's");
        let content = "x".repeat(500_000);
        let file = |path: &str| format!("    - {{path: {path}, content: {content}}}\n");
        let large = format!("{configuration}    files:\n{}{}{}", file("/a"), file("/b"), file("/c"));
        assert!(
            problems(&large)[0].contains(": spec.template: is larger than 1024 KiB"),
            "as large as an agent takes"
        );
        let version =
            configuration.replace("kind: MachineConfiguration", "kind: MachineConfigurationVersion");
        let found = problems(&version);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("2: kind: ") && found[0].contains("write a MachineConfiguration"),
            "{found:?}"
        );
    }

    #[test]
    fn configuration_that_every_host_refuses_is_an_error_of_its_manifest() {
        let configuration = configuration();
        for (more, expected) in [
            (
                "    files:\n    - {path: /a, content: '!', encoding: base64}\n",
                "files[0] (/a): the content is not base64",
            ),
            (
                "    files: [{path: /srv/x, content: x}]\n    container: {binds: [/srv]}\n",
                "the bind /srv is mounted over",
            ),
            ("    sysctls: {'a b': '1'}\n", "sysctls: \"a b\" is not the name of a kernel parameter"),
        ] {
            let found = problems(&format!("{configuration}{more}"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(": spec.template: ") && found[0].contains(expected), "{found:?}");
        }
        let of_api_server = [
            ("    files: [{path: /usr/./lib//modules/x, content: x}]\n", "must not be below /run"),
            ("    files: [{path: /run, content: x}]\n", "must not be below /run"),
            ("    container: {binds: [\"/a\\x85\"]}\n", "does not match"),
        ];
        for (more, expected) in of_api_server {
            let found = problems(&format!("{configuration}{more}"));
            assert!(found[0].contains(expected), "{found:?}");
        }
        let control_plane = configuration.replace(KUBERNETES, "{version: v1.34.4, role: ControlPlane}");
        let found = problems(&format!("{control_plane}    container: {{network: Veth}}\n"));
        assert!(
            found[0].contains("container.network must be Host when kubernetes.role is ControlPlane"),
            "{found:?}"
        );
        for path in
            ["/runner", "/etc/resolv.conf.d/x", "/usr/lib/modules-load.d/x.conf", "/var/tmp/x", "/lib/x"]
        {
            let found = read_manifest(&format!("{configuration}    files: [{{path: {path}, content: x}}]\n"));
            assert!(found.is_ok(), "{path}: {found:?}");
        }
    }

    #[test]
    fn configuration_that_joins_and_names_no_discovery_is_refused() {
        for (kubernetes, is_accepted) in [
            ("{version: v1.34.4}", false),
            ("{version: v1.34.4, joinConfiguration: {}}", false),
            ("{version: v1.34.4, role: ControlPlane, joinConfiguration: {}}", false),
            ("{version: v1.34.4, apiServerEndpoint: 'k:6443'}", false),
            ("{version: v1.34.4, role: ControlPlane}", true),
            (KUBERNETES, true),
        ] {
            let read = read_manifest(&configuration().replace(KUBERNETES, kubernetes));
            assert_eq!(read.is_ok(), is_accepted, "{kubernetes}: {read:?}");
            if let Err(found) = read {
                let found = found[0].to_string();
                assert!(
                    found.starts_with("7: spec.template: kubernetes.joinConfiguration.discovery must be set")
                        && found.contains("set file.kubeConfigPath"),
                    "{found}"
                );
            }
        }
    }

    #[test]
    fn api_server_endpoint_must_be_host_and_port() {
        let with = |endpoint: &str| {
            let kubernetes =
                format!("{{version: v1.34.4, role: ControlPlane, apiServerEndpoint: '{endpoint}'}}");
            configuration().replace(KUBERNETES, &kubernetes)
        };
        for endpoint in ["k:6443", "api.example:443", "10.7.0.2:6443", "[fd00::2]:65535"] {
            let found = read_manifest(&with(endpoint));
            assert!(found.is_ok(), "{endpoint}: {found:?}");
        }
        for endpoint in
            ["k", "https://k:6443", "k:0", "k:65536", "k:6443/", "fd00::2:6443", "K_1:6443", "-k:6443"]
        {
            let found = problems(&with(endpoint));
            assert!(
                found[0].starts_with("8: spec.template.kubernetes.apiServerEndpoint: ")
                    && found[0].contains("as host:port"),
                "{endpoint}: {found:?}"
            );
        }
    }

    #[test]
    fn labels_and_annotations_are_checked_as_by_an_api_server() {
        let with = |metadata: &str| GOOD.replace("name: node-1", &format!("name: node-1\n  {metadata}"));
        let good =
            "labels: {rack: r1, example.com/zone: '', a.b_c: X}\n  annotations: {example.com/Note: any text}";
        assert!(read_manifest(&with(good)).is_ok(), "{:?}", problems(&with(good)));
        for (metadata, expected) in [
            ("labels: {rack: 7}", "5: metadata.labels.rack: is a number: put it in quotes"),
            ("labels: {rack: a b}", "5: metadata.labels.rack: \"a b\" is not a valid label value"),
            ("labels: {a b: x}", "5: metadata.labels.a b: is not a valid key"),
            ("labels: [rack]", "5: metadata.labels: is a list, expected a map"),
            ("annotations: {a/b/c: x}", "5: metadata.annotations.a/b/c: is not a valid key"),
        ] {
            let found = problems(&with(metadata));
            assert!(found.len() == 1 && found[0].starts_with(expected), "{expected}: {found:?}");
        }
        let large = format!("annotations: {{a: {}}}", "x".repeat(256 << 10));
        assert!(problems(&with(&large))[0].contains("metadata.annotations: are larger than 256 KiB"));
    }

    #[test]
    fn counts_and_addresses_are_checked_as_by_an_api_server() {
        let rolling = |count: &str| {
            let strategy = format!(
                "  updateStrategy: {{type: RollingUpdate, rollingUpdate: {{maxUnavailable: {count}}}}}\n"
            );
            configuration() + &strategy
        };
        assert!(read_manifest(&rolling("25%")).is_ok() && read_manifest(&rolling("2")).is_ok());
        for count in ["0", "0%", "101%", "'1'", "99999999999"] {
            let found = problems(&rolling(count));
            let field = "spec.updateStrategy.rollingUpdate.maxUnavailable: ";
            assert!(found[0].contains(field), "{count}: {found:?}");
        }
        let found = problems(&GOOD.replace("10.7.0.21/24", "10.7.0.21/33"));
        assert!(
            found[0].starts_with("10: spec.pxe.interfaces[0].addresses[0]: \"10.7.0.21/33\" is not"),
            "{found:?}"
        );
        let found = problems(
            &GOOD.replace("spec:\n", "spec:\n  configurationRef: {name: a, version: 9223372036854775808}\n"),
        );
        assert!(found[0].starts_with("6: spec.configurationRef.version: "), "{found:?}");
    }

    #[test]
    fn lists_of_unique_entries_refuse_a_second_one() {
        let block = "\n      version: v1.34.4\n      joinConfiguration: {discovery: {file: {kubeConfigPath: /etc/join.conf}}}";
        let configuration = configuration().replace(&format!(" {KUBERNETES}"), block);
        for (more, expected) in [
            ("    kernelModules: [a, b, a]\n", "spec.template.kernelModules[2]: duplicate value: \"a\""),
            (
                "    units: [{name: a.service}, {name: a.service}]\n",
                "spec.template.units[1]: duplicate value: \"a.service\"",
            ),
            (
                "      taints: [{key: a, effect: NoSchedule}, {key: a, value: b, effect: NoSchedule}]\n",
                "spec.template.kubernetes.taints[1]: duplicate value: \"a\", \"NoSchedule\"",
            ),
        ] {
            let found = problems(&format!("{configuration}{more}"));
            assert!(found.len() == 1 && found[0].ends_with(expected), "{expected}: {found:?}");
        }
        let more = "      taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoExecute}]\n    preKubeadmCommands: [a, a]\n";
        let found = read_manifest(&format!("{configuration}{more}"));
        assert!(found.is_ok(), "{found:?}");
    }

    #[test]
    fn broken_yaml_is_named_with_its_line() {
        let found = problems(&GOOD.replace("  provider: pxe", "  provider: [pxe"));
        assert_eq!(found.len(), 1);
        assert!(!found[0].starts_with("1:"), "{found:?}");
        assert!(problems("just text")[0].contains("is not a Kubernetes object"));
        assert!(
            problems("apiVersion: bedplate.dev/v9\nkind: Machine\n")[0]
                .contains("write \"bedplate.dev/v1alpha1\"")
        );
    }

    #[test]
    fn an_empty_file_holds_nothing() {
        for text in ["", "---\n", "# only a comment\n", "---\n---\n"] {
            assert_eq!(read_manifest(text).unwrap(), Manifest::default(), "{text:?}");
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic() {
        for cut in 0..GOOD.len() {
            let _ = read_manifest(&GOOD[..cut]);
            let _ = read_manifest(&GOOD.replacen(&GOOD[cut..=cut], "[", 1));
        }
        let bomb = "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n\
                    d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\n\
                    g: [*f,*f,*f,*f,*f,*f,*f,*f]\n";
        assert!(read_manifest(bomb).is_err());
        assert!(read_manifest(&"[".repeat(100_000)).is_err());
    }

    proptest::proptest! {
        /// The fuzz target of the same name goes further; this runs with every test.
        #[test]
        fn no_change_of_a_manifest_makes_the_reader_panic(
            at in 0..GOOD.len(),
            length in 0..40_usize,
            put in "[-a-z0-9:.,&*!|>#%@`'\"{}\\[\\] \n]{0,12}",
        ) {
            let end = (at + length).min(GOOD.len());
            let text = format!("{}{put}{}", &GOOD[..at], &GOOD[end..]);
            if let Err(problems) = read_manifest(&text) {
                let lines = text.lines().count() as u64 + 1;
                for problem in problems {
                    proptest::prop_assert!((1..=lines).contains(&problem.line), "{problem}");
                }
            }
        }
    }
}
