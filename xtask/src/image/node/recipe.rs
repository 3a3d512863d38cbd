//! `images/node/recipe.toml` as it is written.

use serde::Deserialize;

use super::super::base::Debian;

/// The recipe.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Recipe {
    suite: String,
    mirrors: Vec<String>,
    keyring: String,
    pub(super) source_date_epoch: u64,
    exclude: Vec<String>,
    include: Vec<String>,
    pub(super) default_target: String,
    /// Lowest first.
    pub(super) layers: Vec<Layer>,
}

/// One layer; empty fields may be omitted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layer {
    pub(super) name: String,
    #[serde(default)]
    pub(super) packages: Vec<String>,
    #[serde(default)]
    pub(super) programs: Vec<String>,
    #[serde(default)]
    pub(super) directories: Vec<String>,
    #[serde(default)]
    pub(super) mask: Vec<String>,
    #[serde(default)]
    pub(super) enable: Vec<String>,
}

impl Recipe {
    /// The packages of this layer and of all below it.
    pub(super) fn debian(&self, number: usize) -> Debian<'_> {
        let layers = self.layers.iter().take(number + 1);
        Debian {
            suite: &self.suite,
            mirrors: &self.mirrors,
            keyring: &self.keyring,
            time: self.source_date_epoch,
            packages: layers.flat_map(|layer| &layer.packages).map(String::as_str).collect(),
            exclude: &self.exclude,
            include: &self.include,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipe_of_the_repository_parses_and_layers_count_lower_packages() {
        let path = crate::host::root().join("images/node/recipe.toml");
        let recipe: Recipe = super::super::read(&path).unwrap();
        assert!(recipe.debian(0).packages.contains(&"dbus"));
        assert!(!recipe.debian(0).packages.contains(&"containerd"));
        assert!(recipe.debian(1).packages.contains(&"dbus"));
        assert!(recipe.debian(1).packages.contains(&"containerd"));
        for layer in &recipe.layers {
            assert!(path.with_file_name(&layer.name).is_dir(), "{}", layer.name);
        }
    }
}
