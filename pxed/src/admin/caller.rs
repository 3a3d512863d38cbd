//! Rights of a client of the socket, by the user and the groups that the kernel reports.
//!
//! | client | reads | changes | sees contents of manifests |
//! |---|---|---|---|
//! | root, pxed's own user | yes | yes | yes |
//! | member of the admin group | yes | yes | no |
//! | others who may open the socket | yes | no | no |
//!
//! A token makes its holder a Machine's host, which reads that Machine's Secrets, and operations switch power. So a reader may not change anything.

use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use bedplate_api::reason::refusal::AdminRefusal;
use bedplate_process::listen::accept::UnixPeer;
use nix::unistd::Uid;

use super::route::refuse;

/// Group whose members may change things, if the configuration names none.
pub(super) const DEFAULT_ADMIN_GROUP: &str = "bedplate-admin";

/// Users who may do more than read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// ID of pxed's own user.
    pub own: u32,
    /// Name of the admin group.
    pub group: String,
    /// ID of the admin group. `None`: there is no such group.
    pub group_id: Option<u32>,
}

impl Rights {
    /// Makes the rights for a group with this ID.
    pub fn new(group: String, group_id: Option<u32>) -> Self {
        Self { own: Uid::effective().as_raw(), group, group_id }
    }

    /// Returns true if the client may read the files of manifests on disk.
    pub(super) fn may_read_manifests(&self, peer: &UnixPeer) -> bool {
        peer.user.is_some_and(|user| user == 0 || user == self.own)
    }

    fn may_change(&self, peer: &UnixPeer) -> bool {
        let is_member = |group: u32| peer.group == Some(group) || peer.groups.contains(&group);
        self.may_read_manifests(peer) || self.group_id.is_some_and(is_member)
    }
}

/// Admits a request if its client has the right.
pub(super) async fn admit(
    State(rights): State<Rights>,
    ConnectInfo(peer): ConnectInfo<UnixPeer>,
    request: Request,
    next: Next,
) -> Response {
    if [Method::GET, Method::HEAD].contains(request.method()) || rights.may_change(&peer) {
        return next.run(request).await;
    }
    let (method, path, user) = (request.method(), request.uri().path(), peer.user);
    tracing::debug!(%method, path, user, "request of an unprivileged user refused");
    let group = &rights.group;
    let message = format!(
        "operations, tokens and re-enrollments are for root and members of group {group}; use sudo, or run `usermod -aG {group} NAME` and log in again"
    );
    refuse(AdminRefusal::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_pxed_and_the_admin_group_may_change() {
        let rights = Rights { own: 990, group: "bedplate-admin".to_owned(), group_id: Some(500) };
        let without = Rights { group_id: None, ..rights.clone() };
        let peer = |user, group, groups: &[u32]| UnixPeer { user, group, groups: groups.to_vec() };
        for (peer, changes, without_group) in [
            (peer(Some(0), Some(0), &[]), true, true),
            (peer(Some(990), Some(990), &[]), true, true),
            (peer(Some(1000), Some(1000), &[4, 500]), true, false),
            (peer(Some(1000), Some(500), &[]), true, false),
            (peer(Some(1000), Some(1000), &[4, 990]), false, false),
            (peer(None, None, &[]), false, false),
        ] {
            assert_eq!(
                (rights.may_change(&peer), without.may_change(&peer)),
                (changes, without_group),
                "{peer:?}"
            );
        }
    }
}
