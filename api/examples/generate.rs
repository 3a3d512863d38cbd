//! Writes `api/crds/*.yaml` and `docs/reasons.md`. `cargo xtask generate` calls it, the drift test compares with it. Takes no arguments.

use std::fmt::Write as _;
use std::path::Path;

use bedplate_api::reason::{Actor, Row, tables};

/// Generated files: paths below the repository, with their content.
pub(crate) fn files() -> Vec<(String, String)> {
    let definitions = bedplate_api::crds::definitions();
    let definitions = definitions.iter().map(|definition| {
        let name = format!("api/crds/{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
        let yaml = serde_saphyr::to_string(definition).expect("a definition is plain data");
        (name, format!("# Made from api/src by `cargo xtask generate`: do not edit.\n{}\n", yaml.trim_end()))
    });
    definitions.chain([("docs/reasons.md".to_owned(), reasons())]).collect()
}

/// The tables of reasons, as a page.
fn reasons() -> String {
    let mut page = String::from(
        "<!-- Made from api/src/reason by `cargo xtask generate`: do not edit. -->\n\n# Reasons\n\n\
         A reason is one word of a closed set. It explains a condition, an operation, an Event or a refusal. `bedplate machine explain`\n\
         prints the next step for a Machine. `NAME` stands for the Machine, unless the row says otherwise.\n",
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
    let (actor, text) = row.remedy.map_or(("", ""), |remedy| (actor(remedy.actor), remedy.text));
    format!("| `{}` | {} | {actor} | {text} |\n", row.reason, row.meaning)
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
