//! Pure: the pages of docs/ at the build of this program. Messages of every program name them as `docs/NAME.md`.
//!
//! Callers: `arguments`, `command`.

/// Pages by name, with their text.
const PAGES: [(&str, &str); 31] = [
    ("agent", include_str!("../../docs/agent.md")),
    ("architecture", include_str!("../../docs/architecture.md")),
    ("bench", include_str!("../../docs/bench.md")),
    ("bmc", include_str!("../../docs/bmc.md")),
    ("boot", include_str!("../../docs/boot.md")),
    ("bootstrap", include_str!("../../docs/bootstrap.md")),
    ("claims", include_str!("../../docs/claims.md")),
    ("cluster-api-guide", include_str!("../../docs/cluster-api-guide.md")),
    ("cluster-guide", include_str!("../../docs/cluster-guide.md")),
    ("configuration", include_str!("../../docs/configuration.md")),
    ("controller", include_str!("../../docs/controller.md")),
    ("core-provider", include_str!("../../docs/core-provider.md")),
    ("dependencies", include_str!("../../docs/dependencies.md")),
    ("first-control-plane", include_str!("../../docs/first-control-plane.md")),
    ("images", include_str!("../../docs/images.md")),
    ("infrastructure-provider", include_str!("../../docs/infrastructure-provider.md")),
    ("install", include_str!("../../docs/install.md")),
    ("kubeadm", include_str!("../../docs/kubeadm.md")),
    ("machine", include_str!("../../docs/machine.md")),
    ("machine-configuration", include_str!("../../docs/machine-configuration.md")),
    ("machine-operations", include_str!("../../docs/machine-operations.md")),
    ("metrics", include_str!("../../docs/metrics.md")),
    ("node", include_str!("../../docs/node.md")),
    ("operations", include_str!("../../docs/operations.md")),
    ("providers", include_str!("../../docs/providers.md")),
    ("reasons", include_str!("../../docs/reasons.md")),
    ("rules", include_str!("../../docs/rules.md")),
    ("stuck", include_str!("../../docs/stuck.md")),
    ("testing", include_str!("../../docs/testing.md")),
    ("threats", include_str!("../../docs/threats.md")),
    ("user-data", include_str!("../../docs/user-data.md")),
];

/// Reads the name of a page as messages have it: `stuck`, `stuck.md` or `docs/stuck.md`.
///
/// # Errors
/// There is no such page; the error lists those that exist.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("docs/").unwrap_or(text);
    let name = name.strip_suffix(".md").unwrap_or(name);
    match page(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!("the pages are {}", PAGES.map(|(name, _)| name).join(", "))),
    }
}

/// Returns the text of a page.
pub(crate) fn page(name: &str) -> Option<&'static str> {
    PAGES.iter().find(|(page, _)| *page == name).map(|(_, text)| *text)
}

/// Returns one line for each page: its name and its title.
pub(crate) fn list() -> String {
    let width = PAGES.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let title =
        |text: &'static str| text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default().trim();
    PAGES.iter().map(|(name, text)| format!("{name:width$}  {}\n", title(text))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_of_the_folder_is_there_and_has_a_title() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files: BTreeSet<String> = files
            .filter_map(|path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()))
            .collect();
        let pages: BTreeSet<String> = PAGES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(pages, files);
        assert!(
            list().lines().all(|line| line.split("  ").count() > 1 && !line.ends_with(' ')),
            "{}",
            list()
        );
    }

    #[test]
    fn a_page_is_named_as_messages_name_it() {
        for text in ["stuck", "stuck.md", "docs/stuck.md"] {
            assert_eq!(name(text).as_deref(), Ok("stuck"), "{text}");
        }
        assert!(name("stuk").unwrap_err().contains("stuck"));
        assert!(page("stuck").unwrap().starts_with("# A host is stuck"));
    }

    #[test]
    fn generated_page_is_listed_with_its_title() {
        assert!(list().lines().any(|line| line.split_whitespace().eq(["reasons", "Reasons"])), "{}", list());
    }
}
