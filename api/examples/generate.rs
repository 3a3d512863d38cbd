//! Writes `api/crds/*.yaml`, the pages of kinds, reasons and Events in `docs/reference`, the tables of statuses in `docs/design/rules.md`, and the
//! components of the providers of Cluster API.
//! `cargo xtask generate` calls it, the drift test compares with it. Takes no arguments.

#[path = "generate/kinds.rs"]
mod kinds;

use std::fmt::Write as _;
use std::path::Path;

use bedplate_api::reason::event::{self, EventRow};
use bedplate_api::reason::{Actor, Remedy, Row, tables};
use bedplate_api::writers;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Lines in docs/design/rules.md before and after the tables of statuses.
const START: &str = "<!-- Made from api/src/writers.rs by `cargo xtask generate`: do not edit. -->\n";
const END: &str = "<!-- End of the tables from api/src/writers.rs. -->\n";

/// Generated files: paths below the repository, with their content.
pub(crate) fn files() -> Vec<(String, String)> {
    let definitions = bedplate_api::crds::definitions();
    let definitions = definitions.iter().map(|definition| {
        let name = format!("api/crds/{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
        let yaml = serde_saphyr::to_string(definition).expect("a definition is plain data");
        (name, format!("# Made from api/src by `cargo xtask generate`: do not edit.\n{}\n", yaml.trim_end()))
    });
    let pages = [
        ("docs/reference/kinds.md", kinds::page()),
        ("docs/reference/reasons.md", reasons()),
        ("docs/reference/events.md", events()),
        ("docs/design/rules.md", rules()),
        ("deploy/cluster-api/infrastructure-components.yaml", infrastructure()),
        ("deploy/cluster-api/bootstrap-components.yaml", bootstrap()),
        ("deploy/cluster-api/core-components.yaml", core()),
    ];
    definitions.chain(pages.map(|(path, content)| (path.to_owned(), content))).collect()
}

/// All that clusterctl installs for the infrastructure provider.
fn infrastructure() -> String {
    let head = "# Made from api/src and from policy.yaml and provider.yaml in this folder by `cargo xtask generate`: do not edit.\n";
    components(head, &bedplate_api::crds::infrastructure_definitions(), ["policy.yaml", "provider.yaml"])
}

/// All that clusterctl installs for the bootstrap provider.
fn bootstrap() -> String {
    let head = "# Made from api/src and from bootstrap-policy.yaml and bootstrap-provider.yaml in this folder by `cargo xtask generate`: do not edit.\n\
        # Do not apply the file where upstream's bootstrap provider is installed: it replaces the definitions, and their clients stop working.\n";
    let files = ["bootstrap-policy.yaml", "bootstrap-provider.yaml"];
    components(head, &bedplate_api::crds::bootstrap_definitions(), files)
}

/// Components of a provider: definitions, policies, and then the program with its rights.
fn components(head: &str, definitions: &[CustomResourceDefinition], files: [&str; 2]) -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    // With the label of deploy/namespace.yaml: without it, an apply by the same manager would remove the label.
    let namespace =
        std::fs::read_to_string(deploy.join("namespace.yaml")).expect("deploy/namespace.yaml is there");
    let mut text = format!("{head}{namespace}");
    for definition in definitions {
        let yaml = serde_saphyr::to_string(definition).expect("a definition is plain data");
        write!(text, "---\n{}\n", yaml.trim_end()).expect("a String takes all text");
    }
    for file in files {
        let part = std::fs::read_to_string(deploy.join("cluster-api").join(file))
            .expect("the parts of the provider are there");
        write!(text, "---\n{part}").expect("a String takes all text");
    }
    text
}

/// All that clusterctl installs for the core provider.
fn core() -> String {
    let head = "# Made from api/src and from core-policy.yaml and core-provider.yaml in this folder by `cargo xtask generate`: do not edit.\n\
        # Do not apply the file where upstream's core is installed: it replaces the definitions, and their clients stop working.\n";
    components(head, &bedplate_api::crds::core_definitions(), ["core-policy.yaml", "core-provider.yaml"])
}

/// docs/design/rules.md with its tables of statuses.
fn rules() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/design/rules.md");
    let page = std::fs::read_to_string(path).expect("docs/design/rules.md is there");
    let (before, rest) = page.split_once(START).expect("docs/design/rules.md has the line before its tables");
    let (_, after) = rest.split_once(END).expect("docs/design/rules.md has the line after its tables");
    let mut page = format!("{before}{START}");
    for definition in bedplate_api::crds::definitions() {
        let names = &definition.spec.names;
        let rows = rows(writers::KINDS, &names.plural).unwrap_or_default();
        status(&mut page, &names.kind, rows);
    }
    for definition in bedplate_api::crds::core_definitions() {
        let names = &definition.spec.names;
        let Some(rows) = rows(writers::CORE_KINDS, &names.plural) else { continue };
        status(&mut page, &format!("{} of Cluster API", names.kind), rows);
    }
    format!("{page}\n{END}{after}")
}

fn rows(
    kinds: &'static [(&'static str, &'static [writers::Row])],
    plural: &str,
) -> Option<&'static [writers::Row]> {
    kinds.iter().find(|(kind, _)| *kind == plural).map(|(_, rows)| *rows)
}

/// Adds the table of a kind.
fn status(page: &mut String, kind: &str, rows: &[writers::Row]) {
    write!(page, "\n### Status of a {kind}\n\n| field | writer | read by |\n|---|---|---|\n")
        .expect("a String takes all text");
    // Fields with the same writers and readers share a line.
    let cells = |row: &writers::Row| {
        let writers = row.writers.iter().map(|writer| writer.title()).collect::<Vec<_>>().join("; ");
        let readers = row.readers.iter().map(|reader| reader.title()).collect::<Vec<_>>().join(", ");
        (writers, readers)
    };
    for rows in
        rows.chunk_by(|a, b| cells(a) == cells(b) && a.condition().is_some() == b.condition().is_some())
    {
        let (writers, readers) = cells(&rows[0]);
        let noun = match (rows[0].condition(), rows.len()) {
            (None, _) => "",
            (Some(_), 1) => "condition ",
            (Some(_), _) => "conditions ",
        };
        let fields: Vec<_> =
            rows.iter().map(|row| format!("`{}`", row.condition().unwrap_or(row.field))).collect();
        writeln!(page, "| {noun}{} | {writers} | {readers} |", fields.join(", "))
            .expect("a String takes all text");
    }
}

/// The tables of reasons, as a page.
fn reasons() -> String {
    let mut page = String::from(
        "<!-- Made from api/src/reason by `cargo xtask generate`: do not edit. -->\n\n# Reasons\n\n\
         A reason is one word of a closed set. It explains a condition, an operation or a refusal. `bedplate machine explain`\n\
         prints the next step for a Machine. `NAME` stands for the Machine, unless the row says otherwise.\n\
         The reasons of Events have a [page of their own](events.md).\n",
    );
    for (title, rows) in tables() {
        write!(page, "\n## {title}\n\n| reason | meaning | who must act | next step |\n|---|---|---|---|\n")
            .expect("a String takes all text");
        for row in rows {
            page.push_str(&line(&row));
        }
    }
    page
}

fn line(row: &Row) -> String {
    let (actor, text) = remedy(row.remedy);
    format!("| `{}` | {} | {actor} | {text} |\n", row.reason, row.meaning)
}

/// Party and next step, or empty cells.
fn remedy(remedy: Option<Remedy>) -> (&'static str, &'static str) {
    remedy.map_or(("", ""), |remedy| (actor(remedy.actor), remedy.text))
}

/// The tables of Events, as a page.
fn events() -> String {
    let mut page = String::from(
        "<!-- Made from api/src/reason by `cargo xtask generate`: do not edit. -->\n\n# Events\n\n\
         The programs publish Events of `events.k8s.io/v1`. `kubectl describe` of the regarding object shows them, and\n\
         `kubectl get events -A` lists those of all objects. Events about cluster-scoped objects are in the namespace `default`.\n\
         Type `Warning` means that a party must act. `NAME` stands for the Machine. [Reasons](reasons.md) has the reasons of conditions.\n",
    );
    for (title, rows) in event::tables() {
        write!(page, "\n## {title}\n\n| reason | type | regarding | meaning | who must act | next step |\n|---|---|---|---|---|---|\n")
            .expect("a String takes all text");
        for EventRow { row, is_warning, regarding } in rows {
            let type_ = if is_warning { "Warning" } else { "Normal" };
            let kinds =
                if regarding.is_empty() { "object of the write".to_owned() } else { regarding.join(", ") };
            let (actor, text) = remedy(row.remedy);
            writeln!(page, "| `{}` | {type_} | {kinds} | {} | {actor} | {text} |", row.reason, row.meaning)
                .expect("a String takes all text");
        }
    }
    page
}

fn actor(actor: Actor) -> &'static str {
    match actor {
        Actor::Pxed => "pxed",
        Actor::Controller => "bedplate-controller, or pxed if standalone",
        Actor::Agent => "agent",
        Actor::User => "user",
        Actor::Bmc => "BMC",
        Actor::Registry => "registry",
        Actor::Host => "host",
        Actor::Cluster => "cluster",
        Actor::Other => "other program",
    }
}

#[allow(dead_code, reason = "the drift test includes this file for files()")]
fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (path, content) in files() {
        std::fs::write(root.join(&path), content)?;
        println!("{path}");
    }
    Ok(())
}
