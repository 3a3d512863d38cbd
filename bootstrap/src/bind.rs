//! Pure: binds of the host's paths into a slot, and the paths of a slot that are outside of its root.
//!
//! ```text
//!   source[:target[:option[,option]]]     options: ro, rw, rbind, norbind
//! ```
//! Called by `template` and by agents.

/// A path of the host in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// Path on the host.
    pub source: String,
    /// Path in the slot.
    pub target: String,
    /// True if the mount is read-only.
    pub read_only: bool,
    /// True if mounts below the source are included. `None` selects the default of systemd-nspawn.
    pub recursive: Option<bool>,
}

impl Bind {
    /// Reads one of `container.binds`.
    ///
    /// # Errors
    /// The problem as human-readable text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.contains('\\') {
            return Err("it has a backslash".to_owned());
        }
        let mut parts = text.split(':');
        let source = parts.next().unwrap_or_default();
        let (target, options) = (parts.next().unwrap_or(source), parts.next());
        if parts.next().is_some() {
            return Err("it has more than source, target and options".to_owned());
        }
        for path in [source, target] {
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(format!("{path:?} is not an absolute path without `..`"));
            }
        }
        let mut bind =
            Self { source: source.to_owned(), target: target.to_owned(), read_only: false, recursive: None };
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            match option {
                "ro" => bind.read_only = true,
                "rw" => bind.read_only = false,
                "rbind" => bind.recursive = Some(true),
                "norbind" => bind.recursive = Some(false),
                // Identities are not mapped in a slot, see `PrivateUsers=no`.
                other => {
                    return Err(format!("{other:?} is not one of the options ro, rw, rbind and norbind"));
                }
            }
        }
        Ok(bind)
    }

    /// Formats the mount for systemd.nspawn(5).
    pub fn setting(&self) -> String {
        let name = if self.read_only { "BindReadOnly" } else { "Bind" };
        let option = match self.recursive {
            None => "",
            Some(true) => ":rbind",
            Some(false) => ":norbind",
        };
        format!("{name}={}:{}{option}", self.source, self.target)
    }

    /// Returns the device that the slot may open for the bind.
    pub fn device(&self) -> Option<&str> {
        below(&self.source, "/dev").filter(|name| !name.is_empty()).map(|_| self.source.as_str())
    }
}

/// Returns the rest of a path below another one, without a leading slash. Empty if both are the same.
pub fn below<'p>(path: &'p str, above: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(above)?;
    if rest.is_empty() || above.ends_with('/') {
        return Some(rest);
    }
    rest.strip_prefix('/').map(|rest| rest.trim_start_matches('/'))
}

/// Paths that are mounted over when a slot starts. A file there would be hidden.
const HIDDEN: [&str; 9] = [
    "/run",
    "/var/run",
    "/tmp",
    "/dev",
    "/proc",
    "/sys",
    "/etc/resolv.conf",
    "/lib/modules",
    "/usr/lib/modules",
];

/// Returns a path without double slashes and single dots. Paths of a template have no `..`.
pub fn plain_path(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    parts.fold(String::new(), |path, part| path + "/" + part)
}

/// Returns the mount, other than binds of the version, that hides a file at this path from the node.
pub(crate) fn hidden_by(path: &str) -> Option<&'static str> {
    let path = plain_path(path);
    HIDDEN.into_iter().find(|above| below(&path, above).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_that_is_read_only_is_a_setting_of_its_own_for_nspawn() {
        for (text, setting) in [
            ("/srv", "Bind=/srv:/srv"),
            ("/srv:/data", "Bind=/srv:/data"),
            ("/srv:/data:ro", "BindReadOnly=/srv:/data"),
            ("/srv:/data:norbind,ro", "BindReadOnly=/srv:/data:norbind"),
            ("/srv:/data:rw,rbind", "Bind=/srv:/data:rbind"),
        ] {
            assert_eq!(Bind::parse(text).unwrap().setting(), setting, "{text}");
        }
    }

    #[test]
    fn a_bind_that_would_keep_nspawn_from_starting_is_refused_with_the_reason() {
        for (text, why) in [
            ("/a:/b:readonly", "\"readonly\" is not one of the options"),
            ("/a:/b:idmap", "is not one of the options"),
            ("/a::ro", "\"\" is not an absolute path"),
            ("/a:b", "\"b\" is not an absolute path"),
            ("/a:/../b", "without `..`"),
            ("/a:/b:ro:rw", "more than source, target and options"),
            ("/a\\:b", "backslash"),
        ] {
            let error = Bind::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn device_of_a_bind_is_its_source_below_dev() {
        let device = |text: &str| Bind::parse(text).unwrap().device().map(str::to_owned);
        assert_eq!(device("/dev/kvm"), Some("/dev/kvm".to_owned()));
        assert_eq!(device("/dev/dri/card0:/dev/card:ro"), Some("/dev/dri/card0".to_owned()));
        for text in ["/dev", "/dev/", "/devices/a", "/srv:/dev/kvm"] {
            assert_eq!(device(text), None, "{text}");
        }
    }

    #[test]
    fn a_path_is_below_another_by_whole_names() {
        assert_eq!(below("/run", "/run"), Some(""));
        assert_eq!(below("/run/x", "/run"), Some("x"));
        assert_eq!(below("/runner", "/run"), None);
        assert_eq!(hidden_by("//run/./x"), Some("/run"));
        assert_eq!(hidden_by("/etc/resolv.conf.d/x"), None);
    }
}
