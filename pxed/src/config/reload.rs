//! Pure: what of a new configuration can be taken on while serving, and what needs a restart.

use super::Config;

/// The difference between the configuration in force and a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// The configuration to go on with: the new one where it can be taken on, the old one elsewhere.
    pub config: Config,
    /// Keys and sections that changed and are taken on now.
    pub applied: Vec<&'static str>,
    /// Keys and sections that changed and need a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Compares the configuration in force with a new one.
pub fn plan_reload(old: &Config, new: &Config) -> Reload {
    let mut config = old.clone();
    let mut applied = Vec::new();
    let mut take = |key: &'static str, changed: bool| {
        if changed {
            applied.push(key);
        }
    };
    take("default-image", old.default_image != new.default_image);
    take("discovery-image", old.discovery_image != new.discovery_image);
    take("images", old.images != new.images);
    take("loaders", old.loaders != new.loaders);
    take("dhcp.discovery", old.dhcp.discovery != new.dhcp.discovery);
    take("http.advertise", old.http.advertise != new.http.advertise);
    take("https.advertise", old.https.advertise != new.https.advertise);
    take("limits", old.limits != new.limits);
    config.default_image.clone_from(&new.default_image);
    config.discovery_image.clone_from(&new.discovery_image);
    config.images.clone_from(&new.images);
    config.loaders.clone_from(&new.loaders);
    config.dhcp.discovery = new.dhcp.discovery;
    config.http.advertise.clone_from(&new.http.advertise);
    config.https.advertise.clone_from(&new.https.advertise);
    config.limits.clone_from(&new.limits);
    let needs_restart = [
        ("site", config.site != new.site),
        ("state-directory", config.state_directory != new.state_directory),
        ("socket", config.socket != new.socket),
        ("socket-group", config.socket_group != new.socket_group),
        ("source", config.source != new.source),
        ("dhcp", config.dhcp != new.dhcp),
        ("tftp", config.tftp != new.tftp),
        ("http", config.http != new.http),
        ("https", config.https != new.https),
        ("metrics", config.metrics != new.metrics),
    ];
    let needs_restart = needs_restart.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect();
    Reload { config, applied, needs_restart }
}
