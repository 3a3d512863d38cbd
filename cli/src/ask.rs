//! Whom a question goes to: pxed's socket or the cluster.
//!
//! Pure: whether a socket is there is an argument.

use std::path::{Path, PathBuf};

use crate::arguments::{DEFAULT_SOCKET, Global};

/// Who is asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The pxed behind this socket.
    Pxed(PathBuf),
    /// The cluster.
    Cluster,
}

/// A kubeconfig or context means the cluster, a socket that socket; else the default socket if it is there.
pub(crate) fn choose(global: &Global, is_there: impl Fn(&Path) -> bool) -> Asked {
    let cluster = global.kubeconfig.is_some() || global.context.is_some();
    match (&global.socket, cluster) {
        (_, true) => Asked::Cluster,
        (Some(socket), false) => Asked::Pxed(socket.clone()),
        (None, false) if is_there(Path::new(DEFAULT_SOCKET)) => Asked::Pxed(DEFAULT_SOCKET.into()),
        (None, false) => Asked::Cluster,
    }
}

/// The socket for what only pxed can answer.
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
    fn explicit_choice_wins_and_the_default_socket_comes_before_the_cluster() {
        let there = |_: &Path| true;
        let absent = |_: &Path| false;
        assert_eq!(choose(&global(None, None), there), Asked::Pxed(DEFAULT_SOCKET.into()));
        assert_eq!(choose(&global(None, None), absent), Asked::Cluster);
        assert_eq!(choose(&global(None, Some("lab")), there), Asked::Cluster);
        assert_eq!(choose(&global(Some("/tmp/s"), None), absent), Asked::Pxed("/tmp/s".into()));
    }
}
