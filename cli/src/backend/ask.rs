//! Choice between pxed's socket and the cluster.
//!
//! Pure: the caller passes whether a socket exists.

use std::path::{Path, PathBuf};

use crate::arguments::{DEFAULT_SOCKET, Global};

/// Target of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The pxed behind this socket.
    Pxed(PathBuf),
    /// The cluster.
    Cluster,
}

/// Chooses the target. A kubeconfig or context selects the cluster, a socket selects pxed. Without both, pxed
/// is chosen if the default socket exists.
pub(crate) fn choose(global: &Global, is_there: impl Fn(&Path) -> bool) -> Asked {
    match (&global.socket, names_cluster(global)) {
        (_, true) => Asked::Cluster,
        (Some(socket), false) => Asked::Pxed(socket.clone()),
        (None, false) if is_there(Path::new(DEFAULT_SOCKET)) => Asked::Pxed(DEFAULT_SOCKET.into()),
        (None, false) => Asked::Cluster,
    }
}

/// Returns the flags that repeat the choice in a suggested command. If there are any, the text starts with a
/// space.
pub(crate) fn again(global: &Global) -> String {
    let mut flags = String::new();
    let paths = [("--kubeconfig", &global.kubeconfig), ("--socket", &global.socket)];
    for (flag, path) in paths {
        // A cluster named by a flag overrides a socket named by the environment.
        if let Some(path) = path.as_ref().filter(|_| flag != "--socket" || !names_cluster(global)) {
            flags.push_str(&format!(" {flag} {}", path.display()));
        }
    }
    if let Some(context) = &global.context {
        flags.push_str(&format!(" --context {context}"));
    }
    flags
}

/// Commands that only pxed answers. They do not accept flags that name a cluster.
const PXED: [&str; 3] = ["bedplate explain ", "bedplate discovered", "bedplate machine token "];

/// Returns a hint whose commands have the flags of the same target. Probes of a BMC have no target.
pub(crate) fn aimed(hint: &str, global: &Global) -> String {
    let again = again(global);
    let asks_pxed =
        |part: &str| names_cluster(global) && PXED.iter().any(|command| part.starts_with(command));
    let part = |(number, part): (usize, &str)| {
        let is_command = number % 2 == 1 && part.starts_with("bedplate ");
        let takes_them = is_command && !part.starts_with("bedplate bmc ") && !asks_pxed(part);
        if takes_them { format!("{part}{again}") } else { part.to_owned() }
    };
    hint.split('`').enumerate().map(part).collect::<Vec<_>>().join("`")
}

fn names_cluster(global: &Global) -> bool {
    global.kubeconfig.is_some() || global.context.is_some()
}

/// Returns the socket, for requests that only pxed can answer.
pub(crate) fn socket(global: &Global) -> PathBuf {
    global.socket.clone().unwrap_or_else(|| DEFAULT_SOCKET.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Output;

    fn global(socket: Option<&str>, context: Option<&str>) -> Global {
        Global {
            output: Output::Human,
            socket: socket.map(PathBuf::from),
            kubeconfig: None,
            context: context.map(str::to_owned),
        }
    }

    #[test]
    fn suggested_command_asks_the_same_target() {
        assert_eq!(again(&global(None, None)), "");
        assert_eq!(again(&global(Some("/s"), None)), " --socket /s");
        assert_eq!(again(&global(Some("/s"), Some("lab"))), " --context lab");
    }

    #[test]
    fn commands_of_a_hint_ask_the_same() {
        let hint = "`bedplate operation list` shows them, `bedplate bmc probe` asks; in group `bedplate`: bedplate power";
        let expected = "`bedplate operation list --socket /s` shows them, `bedplate bmc probe` asks; in group `bedplate`: bedplate power";
        assert_eq!(aimed(hint, &global(Some("/s"), None)), expected);
        assert_eq!(aimed(hint, &global(None, None)), hint);
        let next = "`bedplate explain a`, `bedplate machine explain a`";
        let expected = "`bedplate explain a`, `bedplate machine explain a --context lab`";
        assert_eq!(aimed(next, &global(None, Some("lab"))), expected);
    }

    #[test]
    fn explicit_choice_wins_and_the_default_socket_comes_before_the_cluster() {
        let there = |_: &Path| true;
        let absent = |_: &Path| false;
        assert_eq!(choose(&global(None, None), there), Asked::Pxed(DEFAULT_SOCKET.into()));
        assert_eq!(choose(&global(None, None), absent), Asked::Cluster);
        assert_eq!(choose(&global(None, Some("lab")), there), Asked::Cluster);
        assert_eq!(choose(&global(Some("/tmp/s"), None), absent), Asked::Pxed("/tmp/s".into()));
    }
}
