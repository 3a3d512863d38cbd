//! Writes `api/crds/*.yaml`: `cargo xtask crds` calls it, the drift test compares with it. Takes no arguments.

use std::path::Path;

/// File names below `api/crds` and their content.
pub(crate) fn files() -> Vec<(String, String)> {
    bedplate_api::crds::definitions()
        .iter()
        .map(|definition| {
            let name = format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
            let yaml = serde_saphyr::to_string(definition).expect("a definition is plain data");
            (name, format!("# Made from api/src by `cargo xtask crds`: do not edit.\n{}\n", yaml.trim_end()))
        })
        .collect()
}

#[allow(dead_code, reason = "the drift test includes this file for files()")]
fn main() -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    std::fs::create_dir_all(&directory)?;
    for (name, content) in files() {
        std::fs::write(directory.join(&name), content)?;
        println!("api/crds/{name}");
    }
    Ok(())
}
