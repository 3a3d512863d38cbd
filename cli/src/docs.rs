//! Pure: the pages of docs/ at the build of this program. Messages of every program name them as `docs/FOLDER/NAME.md`.
//!
//! Callers: `arguments`, `command`.

/// Pages by name, with their text.
const PAGES: [(&str, &str); 38] = [
    ("agent", include_str!("../../docs/concepts/agent.md")),
    ("architecture", include_str!("../../docs/design/architecture.md")),
    ("bench", include_str!("../../docs/design/bench.md")),
    ("bmc", include_str!("../../docs/guides/bmc.md")),
    ("boot", include_str!("../../docs/troubleshooting/boot.md")),
    ("bootstrap", include_str!("../../docs/reference/bootstrap.md")),
    ("claims", include_str!("../../docs/guides/claims.md")),
    ("cluster-api-guide", include_str!("../../docs/guides/cluster-api-guide.md")),
    ("cluster-guide", include_str!("../../docs/guides/cluster-guide.md")),
    ("commands", include_str!("../../docs/reference/commands.md")),
    ("configuration", include_str!("../../docs/reference/configuration.md")),
    ("controller", include_str!("../../docs/concepts/controller.md")),
    ("core-provider", include_str!("../../docs/reference/core-provider.md")),
    ("demo", include_str!("../../docs/getting-started/demo.md")),
    ("dependencies", include_str!("../../docs/design/dependencies.md")),
    ("events", include_str!("../../docs/reference/events.md")),
    ("first-control-plane", include_str!("../../docs/getting-started/first-control-plane.md")),
    ("images", include_str!("../../docs/guides/images.md")),
    ("infrastructure-provider", include_str!("../../docs/reference/infrastructure-provider.md")),
    ("install", include_str!("../../docs/getting-started/install.md")),
    ("kinds", include_str!("../../docs/reference/kinds.md")),
    ("kubeadm", include_str!("../../docs/reference/kubeadm.md")),
    ("machine", include_str!("../../docs/guides/machine.md")),
    ("machine-configuration", include_str!("../../docs/guides/machine-configuration.md")),
    ("machine-operations", include_str!("../../docs/guides/machine-operations.md")),
    ("metrics", include_str!("../../docs/reference/metrics.md")),
    ("node", include_str!("../../docs/concepts/node.md")),
    ("operations", include_str!("../../docs/guides/operations.md")),
    ("overview", include_str!("../../docs/concepts/overview.md")),
    ("providers", include_str!("../../docs/design/providers.md")),
    ("reasons", include_str!("../../docs/reference/reasons.md")),
    ("rolling-updates", include_str!("../../docs/guides/rolling-updates.md")),
    ("rules", include_str!("../../docs/design/rules.md")),
    ("stuck", include_str!("../../docs/troubleshooting/stuck.md")),
    ("testing", include_str!("../../docs/design/testing.md")),
    ("threats", include_str!("../../docs/design/threats.md")),
    ("user-data", include_str!("../../docs/reference/user-data.md")),
    ("user-installed-hosts", include_str!("../../docs/guides/user-installed-hosts.md")),
];

/// Reads the name of a page as messages have it: `stuck`, `stuck.md` or `docs/troubleshooting/stuck.md`.
///
/// # Errors
/// There is no such page; the error lists those that exist.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let name = text.rsplit('/').next().unwrap_or(text);
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let folders = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
        let folders = folders.filter(|path| path.is_dir());
        let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let files: BTreeSet<String> = files
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
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
        for text in ["stuck", "stuck.md", "docs/troubleshooting/stuck.md"] {
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
