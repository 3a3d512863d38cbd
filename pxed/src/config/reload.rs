//! Pure: splits a new configuration into changes that apply while serving and changes that need a restart.

use super::Config;

/// The difference between the configuration in force and a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// Resulting configuration: new values where they can be applied, old values elsewhere.
    pub config: Config,
    /// Changed keys and sections that are applied now.
    pub applied: Vec<&'static str>,
    /// Keys and sections that changed and need a restart.
    pub needs_restart: Vec<&'static str>,
}

/// Compares the configuration in force with a new one.
pub(crate) fn plan_reload(old: &Config, new: &Config) -> Reload {
    let mut config = new.clone();
    // Bound sockets and one-time objects are not changed.
    config.site.clone_from(&old.site);
    config.state_directory.clone_from(&old.state_directory);
    config.socket.clone_from(&old.socket);
    config.socket_group.clone_from(&old.socket_group);
    config.socket_admin_group.clone_from(&old.socket_admin_group);
    config.source.clone_from(&old.source);
    config.secrets_directory.clone_from(&old.secrets_directory);
    config.dhcp.mode = old.dhcp.mode;
    config.dhcp.server_port = old.dhcp.server_port;
    config.dhcp.client_port = old.dhcp.client_port;
    config.dhcp.proxy_port = old.dhcp.proxy_port;
    config.tftp.enabled = old.tftp.enabled;
    config.tftp.listen = old.tftp.listen;
    config.http.clone_from(&old.http);
    config.https.clone_from(&old.https);
    config.metrics.clone_from(&old.metrics);
    config.bmc.clone_from(&old.bmc);
    config.limits.boot_lifetime = old.limits.boot_lifetime;
    config.limits.discovered_machines = old.limits.discovered_machines;
    config.limits.image_cache = old.limits.image_cache;
    let applied = differences(old, &config);
    let needs_restart = differences(&config, new);
    Reload { config, applied, needs_restart }
}

/// The sections in which two configurations differ.
fn differences(a: &Config, b: &Config) -> Vec<&'static str> {
    let differ = [
        ("site", a.site != b.site),
        ("state-directory", a.state_directory != b.state_directory),
        ("socket", a.socket != b.socket),
        ("socket-group", a.socket_group != b.socket_group),
        ("socket-admin-group", a.socket_admin_group != b.socket_admin_group),
        ("source", a.source != b.source || a.secrets_directory != b.secrets_directory),
        ("default-image", a.default_image != b.default_image),
        ("discovery-image", a.discovery_image != b.discovery_image),
        ("dhcp", a.dhcp != b.dhcp),
        ("tftp", a.tftp != b.tftp),
        ("http", a.http != b.http),
        ("https", a.https != b.https),
        ("metrics", a.metrics != b.metrics),
        ("bmc", a.bmc != b.bmc),
        ("loaders", a.loaders != b.loaders),
        ("images", a.images != b.images),
        ("limits", a.limits != b.limits),
    ];
    differ.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}
