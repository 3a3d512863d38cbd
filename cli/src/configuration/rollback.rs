//! Rolls back to an earlier version: a configuration, by writing the old template into it again, or one
//! Machine, by naming the version in its `configurationRef` (H7).
//!
//! Shows the changes and their consequences, asks for confirmation, then writes. The write is bound to the
//! objects that were shown.

use bedplate_api::configuration::{MachineConfiguration, NodeRole, Template, UpdateStrategyType};
use bedplate_api::machine::{Condition, ConfigurationRef, Machine, MachineStatus, NodeRef, condition_type};
use bedplate_api::reason::machine::PavedReason;
use bedplate_api::version::MachineConfigurationVersion;
use bedplate_rules::claim::claimant;
use bedplate_rules::selection::{is_deployed, means_the_same};
use kube::Client;
use serde_json::json;

use super::{ConfigureError, history, version_name};
use crate::arguments::ConfigRollback;
use crate::backend::cluster::{self, AskClusterError};
use crate::confirm::{changed, confirm};
use crate::error::RunError;
use crate::output::{Page, Progress};
use crate::render::{self, Described};

/// Annotation of a client-side `kubectl apply`. Its field manager does not identify it, because the operation
/// is an update.
const CLIENT_SIDE: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Rolls back in a cluster.
pub(crate) async fn run(
    client: &Client,
    described: &Described,
    arguments: &ConfigRollback,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    match &arguments.machine {
        None => {
            let target = target(described, None, arguments.to)?;
            of_configuration(client, described, target, arguments, page).await
        }
        Some(machine) => {
            let machine = cluster::get::<Machine>(client, machine.as_str()).await?;
            let target = target(described, Some(&machine), arguments.to)?;
            of_machine(client, described, (&machine, target), arguments, page).await
        }
    }
}

/// Returns the version to roll back to: the named one, or the one before the Machine's desired version, or
/// the one before the newest.
fn target<'a>(
    described: &'a Described,
    machine: Option<&Machine>,
    number: Option<i64>,
) -> Result<&'a MachineConfigurationVersion, ConfigureError> {
    if let Some(number) = number {
        return history::find(described, number);
    }
    let selected = machine.and_then(|machine| machine.status.as_ref()?.selected.as_ref());
    let selected = selected.filter(|selected| selected.name == described.name());
    match selected {
        Some(selected) => history::before(described, selected.version),
        None => history::before(described, history::newest(described)?.spec.version),
    }
}

async fn of_configuration(
    client: &Client,
    described: &Described,
    target: &MachineConfigurationVersion,
    arguments: &ConfigRollback,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let configuration = &described.configuration;
    let (name, template) = (described.name(), &target.spec.template);
    if means_the_same(&configuration.spec.template, template) {
        return print(
            page,
            &json!(configuration),
            &format!("{name} already has the template of {}\n", version_name(target)),
        );
    }
    let now = format!("{name} now");
    let shown = (now.as_str(), &configuration.spec.template);
    let facts = consequences(described, target);
    show(page, shown, (&version_name(target), template), &facts)?;
    confirm(page, arguments.yes, &format!("write the template of {} into {name}?", version_name(target)))?;
    let patch = json!([
        { "op": "test", "path": "/metadata/resourceVersion", "value": configuration.metadata.resource_version },
        { "op": "replace", "path": "/spec/template", "value": template },
    ]);
    let written = cluster::edit::<MachineConfiguration>(client, &name, patch).await;
    let written = written.map_err(|error| changed(error, &format!("MachineConfiguration {name}")))?;
    print(
        page,
        &json!(written),
        &format!("MachineConfiguration {name} rolled back to the template of {}\n", version_name(target)),
    )
}

/// Returns the consequences of writing the old template into the configuration. Pure.
pub(crate) fn consequences(described: &Described, target: &MachineConfigurationVersion) -> Vec<String> {
    let (configuration, name) = (&described.configuration, described.name());
    let newest = described.versions.iter().max_by_key(|version| version.spec.version);
    let latest = configuration.status.as_ref().and_then(|status| status.latest_version).unwrap_or_default();
    let latest = latest.max(newest.map_or(0, |version| version.spec.version));
    let mut facts = vec![match newest.filter(|newest| !is_deployed(newest)) {
        Some(newest) => format!(
            "no Machine has used {} yet; it gets the template of v{}",
            version_name(newest),
            target.spec.version
        ),
        None => {
            let next = bedplate_api::version::version_name(&name, latest + 1);
            format!("{next} is created with the template of v{}", target.spec.version)
        }
    }];
    let users = described.machines.iter().filter(|machine| !machine.is_pinned()).count();
    let strategy = &configuration.spec.update_strategy;
    facts.push(match strategy.type_ {
        UpdateStrategyType::OnDelete => format!(
            "{users} Machines are not changed; each is repaved when its Node is deleted (updateStrategy OnDelete); to repave one \
             immediately: `bedplate config rollback {name} --to {} --machine MACHINE --delete-node`",
            target.spec.version
        ),
        UpdateStrategyType::RollingUpdate => {
            let most = strategy.rolling_update.as_ref().map_or_else(|| "1".to_owned(), |rolling| {
                json!(rolling.max_unavailable).to_string().replace('"', "")
            });
            format!("{users} Machines are updated one after the other (updateStrategy RollingUpdate, maxUnavailable {most})")
        }
    });
    let pinned: Vec<&str> = described
        .machines
        .iter()
        .filter(|machine| machine.is_pinned())
        .map(|machine| machine.name.as_str())
        .collect();
    if !pinned.is_empty() {
        facts.push(format!("not changed, because configurationRef names a version: {}", pinned.join(", ")));
    }
    facts.extend(owner(configuration).map(|manager| {
        format!("the template is applied by {manager}, which will overwrite this change; change the template there too")
    }));
    facts
}

/// Returns the writer that applies the template other than by an edit. It will overwrite the rollback.
fn owner(configuration: &MachineConfiguration) -> Option<String> {
    let owners = configuration.metadata.managed_fields.iter().flatten();
    let mut owners = owners.filter(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        entry.operation.as_deref() == Some("Apply")
            && fields.is_some_and(|fields| !fields["f:spec"]["f:template"].is_null())
    });
    let kubectl = configuration.metadata.annotations.as_ref();
    let kubectl = kubectl.filter(|annotations| annotations.contains_key(CLIENT_SIDE));
    owners.find_map(|entry| entry.manager.clone()).or_else(|| kubectl.map(|_| "`kubectl apply`".to_owned()))
}

async fn of_machine(
    client: &Client,
    described: &Described,
    (machine, target): (&Machine, &MachineConfigurationVersion),
    arguments: &ConfigRollback,
    page: &mut Page<'_>,
) -> Result<(), RunError> {
    let name = machine.metadata.name.clone().unwrap_or_default();
    let status = machine.status.clone().unwrap_or_default();
    let node = if arguments.delete_node {
        let runs = running(client, described, &status).await?;
        Some(node_to_delete(machine, runs.as_ref())?)
    } else {
        None
    };
    let applied = status.applied.as_ref().filter(|applied| applied.name == described.name());
    let runs = applied.and_then(|applied| history::find(described, applied.version).ok());
    let wanted = version_name(target);
    let facts = pin_consequences(machine, target, arguments.delete_node);
    match runs {
        Some(runs) => {
            show(page, (&version_name(runs), &runs.spec.template), (&wanted, &target.spec.template), &facts)?;
        }
        None => facts.iter().for_each(|fact| Progress::new().note(&render::clean(fact))),
    }
    let question = if arguments.delete_node {
        format!("set {wanted} in Machine {name} and delete its Node, with the Pods on it?")
    } else {
        format!("set {wanted} in Machine {name}?")
    };
    confirm(page, arguments.yes, &question)?;
    let reference = ConfigurationRef { name: described.name(), version: Some(target.spec.version) };
    let patch = json!([
        { "op": "test", "path": "/metadata/uid", "value": machine.metadata.uid },
        { "op": "add", "path": "/spec/configurationRef", "value": reference },
    ]);
    let written = cluster::edit::<Machine>(client, &name, patch).await;
    let written = written.map_err(|error| changed(error, &format!("Machine {name}")))?;
    let mut text = format!("Machine {name} references {wanted}\n");
    match node {
        Some(node) => {
            cluster::delete_node(client, &node)
                .await
                .map_err(|error| changed(error, &format!("Node {}", node.name)))?;
            text.push_str(&format!(
                "Node {} deleted; follow the repave: `bedplate machine explain {name}`\n",
                node.name
            ));
        }
        None => text.push_str(&format!(
            "to repave the host: `kubectl drain {name}`, then `kubectl delete node {name}`\n"
        )),
    }
    print(page, &json!(written), &text)
}

/// Returns the template that the host runs now. Returns `None` if it runs nothing, or if the version no
/// longer exists.
async fn running(
    client: &Client,
    described: &Described,
    status: &MachineStatus,
) -> Result<Option<Template>, AskClusterError> {
    let Some(applied) = &status.applied else { return Ok(None) };
    if applied.name == described.name()
        && let Ok(version) = history::find(described, applied.version)
    {
        return Ok(Some(version.spec.template.clone()));
    }
    let name = applied.version_name();
    match cluster::get::<MachineConfigurationVersion>(client, &name).await {
        Ok(version) => Ok(Some(version.spec.template)),
        Err(AskClusterError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the Node whose deletion repaves the host. `runs` is the template that the host runs.
fn node_to_delete(machine: &Machine, runs: Option<&Template>) -> Result<NodeRef, ConfigureError> {
    let name = machine.metadata.name.clone().unwrap_or_default();
    let status = machine.status.clone().unwrap_or_default();
    let kept =
        |c: &Condition| c.type_ == condition_type::PAVED && c.reason == PavedReason::ControlPlaneProtected;
    let control_plane = runs.map(|runs| &runs.kubernetes).filter(|one| one.role == NodeRole::ControlPlane);
    let makes_cluster = control_plane.is_some_and(|one| one.join_configuration.is_none());
    if makes_cluster || status.conditions.iter().any(kept) {
        return Err(ConfigureError::ControlPlaneProtected { machine: name });
    }
    if let Some(by) = claimant(machine) {
        return Err(ConfigureError::LeftAlone { machine: name, why: format!("claimed by {by}") });
    }
    if machine.spec.paused {
        return Err(ConfigureError::LeftAlone { machine: name, why: "paused".to_owned() });
    }
    let node = status.node_ref.ok_or(ConfigureError::NoNode { machine: name.clone() })?;
    if control_plane.is_some() { Err(ConfigureError::ControlPlane { machine: name }) } else { Ok(node) }
}

/// Returns the consequences of naming the version in the Machine. Pure.
fn pin_consequences(machine: &Machine, target: &MachineConfigurationVersion, delete: bool) -> Vec<String> {
    let status = machine.status.clone().unwrap_or_default();
    let wanted = (target.spec.configuration_name.as_str(), target.spec.version);
    let name = machine.metadata.name.clone().unwrap_or_default();
    let runs =
        status.applied.as_ref().is_some_and(|applied| (applied.name.as_str(), applied.version) == wanted);
    let mut facts = vec![match (&status.node_ref, delete) {
        _ if runs => format!("{name} already runs {}, and stays on it", version_name(target)),
        (None, _) => format!("{name} has no Node; it is paved with this version"),
        (Some(_), true) => format!(
            "the Node is deleted without a drain (run `kubectl drain {name}` first to spare its Pods), and the host is repaved"
        ),
        (Some(_), false) => "the node runs unchanged until its Node is deleted".to_owned(),
    }];
    let others = machine.spec.configuration_ref.as_ref().map(|named| &named.name);
    let others = others.or(status.selected.as_ref().map(|selected| &selected.name));
    if let Some(other) = others.filter(|other| **other != target.spec.configuration_name) {
        facts.push(format!("{name} uses MachineConfiguration {other} until now"));
    }
    facts.push(format!("{name} ignores later edits until `version` is removed from spec.configurationRef"));
    if machine.spec.paused {
        facts.push(format!("{name} is paused; nothing changes until it is unpaused"));
    }
    facts
}

fn show(
    page: &mut Page<'_>,
    from: (&str, &bedplate_api::configuration::Template),
    to: (&str, &bedplate_api::configuration::Template),
    facts: &[String],
) -> Result<(), RunError> {
    if page.is_json() {
        return Ok(());
    }
    let look = page.look();
    page.print(render::difference(from, to, look).ok_or(ConfigureError::Answer)?)?;
    for fact in facts {
        page.print(format!("- {}\n", render::clean(fact)))?;
    }
    Ok(())
}

fn print(page: &mut Page<'_>, object: &serde_json::Value, text: &str) -> Result<(), RunError> {
    if page.is_json() { page.json(object) } else { page.print(render::clean_lines(text)) }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use bedplate_api::machine::{Selected, SelectionSource};

    use super::*;

    fn described(strategy: &Value, versions: &[(i64, bool)]) -> Described {
        let template = |version: i64| {
            json!({ "image": { "reference": format!("registry.example/node:{version}"), "allowTag": true },
                "kubernetes": { "version": "v1.34.4" } })
        };
        let versions: Vec<Value> = versions
            .iter()
            .map(|(version, deployed)| {
                json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfigurationVersion",
                    "metadata": { "name": format!("w-v{version}") }, "status": { "deployed": deployed },
                    "spec": { "configurationName": "w", "version": version, "template": template(*version) } })
            })
            .collect();
        serde_json::from_value(json!({
            "configuration": { "apiVersion": "bedplate.dev/v1alpha1", "kind": "MachineConfiguration", "metadata": { "name": "w",
                "managedFields": [{ "manager": "argocd", "operation": "Apply", "fieldsV1": { "f:spec": { "f:template": {} } } }] },
                "spec": { "updateStrategy": strategy, "template": template(3) }, "status": { "latestVersion": 5 } },
            "versions": versions,
            "machines": [{ "name": "a", "applied": { "name": "w", "version": 3, "slot": "a" } },
                { "name": "b", "configurationRef": { "name": "w", "version": 2 } }],
        }))
        .unwrap()
    }

    #[test]
    fn h7_what_a_rollback_does_is_said_before_it_is_done() {
        let on_delete = described(&json!({}), &[(3, true), (2, true)]);
        let facts = consequences(&on_delete, history::find(&on_delete, 2).unwrap());
        assert_eq!(facts[0], "w-v6 is created with the template of v2", "no number is used twice");
        assert!(facts[1].starts_with("1 Machines are not changed"), "{facts:?}");
        assert_eq!(facts[2], "not changed, because configurationRef names a version: b");
        assert!(facts[3].contains("applied by argocd"), "{facts:?}");
        let rolling = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } });
        let unused = described(&rolling, &[(3, false), (2, true)]);
        let facts = consequences(&unused, history::find(&unused, 2).unwrap());
        assert_eq!(facts[0], "no Machine has used w-v3 yet; it gets the template of v2");
        assert!(facts[1].contains("maxUnavailable 10%"), "{facts:?}");
    }

    #[test]
    fn h7_writer_of_the_template_is_named_for_each_kind_of_apply() {
        let mut described = described(&json!({}), &[(3, true), (2, true)]);
        let of = |described: &Described| {
            let facts = consequences(described, history::find(described, 2).unwrap());
            facts.into_iter().find(|fact| fact.contains("will overwrite this change"))
        };
        described.configuration.metadata.managed_fields = None;
        assert_eq!(of(&described), None);
        let annotations = [(CLIENT_SIDE.to_owned(), "{}".to_owned())];
        described.configuration.metadata.annotations = Some(annotations.into());
        let text = of(&described).unwrap();
        assert!(text.contains("applied by `kubectl apply`"), "{text}");
    }

    fn machine(status: &Value) -> Machine {
        serde_json::from_value(
            json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "provider": "manual" }, "status": status }),
        )
        .unwrap()
    }

    #[test]
    fn h7_a_machine_goes_back_from_what_it_was_given_not_from_the_newest() {
        let described = described(&json!({}), &[(5, false), (4, true), (3, true), (2, true)]);
        let given = |name: &str, version: i64| {
            machine(&json!({ "selected": { "name": name, "version": version, "source": "Selector" } }))
        };
        let number = |machine: Option<&Machine>, to: Option<i64>| {
            target(&described, machine, to).map(|found| found.spec.version).ok()
        };
        assert_eq!(number(None, None), Some(4));
        assert_eq!(number(Some(&given("w", 4)), None), Some(3));
        assert_eq!(number(Some(&given("w", 4)), Some(2)), Some(2));
        assert_eq!(number(Some(&given("w", 2)), None), None, "none before it");
        assert_eq!(number(Some(&given("other", 9)), None), Some(4));
    }

    #[test]
    fn h7_node_of_a_host_that_would_not_be_repaved_is_not_deleted() {
        let joined = machine(&json!({ "nodeRef": { "name": "a", "uid": "u" } }));
        assert_eq!(node_to_delete(&joined, None).unwrap().uid, "u");
        let runs = |kubernetes: Value| -> Template {
            let template = json!({ "image": { "reference": "r.example/node", "allowTag": true }, "kubernetes": kubernetes });
            serde_json::from_value(template).unwrap()
        };
        let worker = runs(json!({ "version": "v1.34.4", "joinConfiguration": {} }));
        assert_eq!(node_to_delete(&joined, Some(&worker)).unwrap().uid, "u");
        // The running version decides, not the condition.
        let first = runs(json!({ "version": "v1.34.4", "role": "ControlPlane" }));
        let error = node_to_delete(&joined, Some(&first)).unwrap_err();
        assert!(matches!(error, ConfigureError::ControlPlaneProtected { .. }), "{error}");
        let further = runs(json!({ "version": "v1.34.4", "role": "ControlPlane", "joinConfiguration": {} }));
        let error = node_to_delete(&joined, Some(&further)).unwrap_err();
        assert!(
            error.hint().unwrap().contains("applyConfiguration --machine a --parameter disruption=allow")
        );
        let mut paused = joined.clone();
        paused.spec.paused = true;
        let mut claimed = joined;
        let source = SelectionSource::Claim;
        claimed.status.as_mut().unwrap().selected =
            Some(Selected { name: "w".to_owned(), version: 1, source, provider_id: None, granted: false });
        for (machine, why) in
            [(paused, "Machine a is paused"), (claimed, "Machine a is claimed by MachineClaim a")]
        {
            let error = node_to_delete(&machine, None).unwrap_err();
            assert!(error.to_string().starts_with(why), "{error}");
            assert!(error.hint().unwrap().contains("--delete-node"), "{error}");
        }
    }

    #[test]
    fn h7_a_machine_that_would_get_another_configuration_is_said_to() {
        let described = described(&json!({}), &[(3, true), (2, true)]);
        let facts = |name: &str| {
            let machine =
                machine(&json!({ "selected": { "name": name, "version": 1, "source": "Selector" } }));
            pin_consequences(&machine, history::find(&described, 2).unwrap(), false).join("; ")
        };
        assert!(facts("other").contains("MachineConfiguration other until now"), "{}", facts("other"));
        assert!(!facts("w").contains("until now"), "{}", facts("w"));
    }

    #[test]
    fn a_version_that_is_not_there_is_refused_with_those_that_are() {
        let described = described(&json!({}), &[(3, true), (2, true)]);
        let error = history::find(&described, 7).unwrap_err();
        assert_eq!(error.to_string(), "w has no version 7; existing versions: v2, v3");
        assert!(error.hint().unwrap().contains("bedplate config history w"));
        assert!(history::before(&described, 2).is_err());
        let (from, to) = history::pair(&described, None, None).unwrap();
        assert_eq!((from.spec.version, to.spec.version), (2, 3));
    }

    #[test]
    fn history_says_who_has_a_version_and_what_it_changed() {
        let described = described(&json!({}), &[(2, true), (3, true)]);
        let rows = history::rows(&described);
        assert_eq!((rows[0].version, &rows[0].machines), (3, &vec!["a".to_owned()]));
        let change = ["image.reference registry.example/node:2 -> registry.example/node:3".to_owned()];
        assert_eq!(rows[0].changes.as_deref(), Some(&change[..]));
        assert_eq!((rows[1].machines.clone(), rows[1].changes.clone()), (vec!["b".to_owned()], None));
    }
}
