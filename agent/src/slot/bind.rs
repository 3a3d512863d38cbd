//! Paths of a slot that are kept in directories next to its root.
//!
//! Pure. Called by `store`, `fill_record`, `kubelet_files` and operations.

use bedplate_api::configuration::NodeRole;
use bedplate_bootstrap::bind::below;
pub use bedplate_bootstrap::bind::plain_path;

use super::store;

/// Returns the place of a path that is not in the slot's root: name of the kept directory, and path below it.
pub fn kept(path: &str, role: NodeRole) -> Option<(&'static str, String)> {
    let path = plain_path(path);
    store::kept(role).iter().find_map(|(name, target)| {
        let rest = below(&path, target).filter(|rest| !rest.is_empty())?;
        Some((*name, format!("/{rest}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_directories_are_found_by_whole_names() {
        let (worker, control_plane) = (NodeRole::Worker, NodeRole::ControlPlane);
        assert_eq!(
            kept("/var/lib/kubelet//config.json", worker),
            Some(("kubelet", "/config.json".to_owned()))
        );
        assert_eq!(kept("/var/lib/kubelet-x", worker), None);
        assert_eq!(kept("/etc/kubernetes/pki/ca.crt", worker), None);
        let ca = kept("/etc/kubernetes/pki/ca.crt", control_plane);
        assert_eq!(ca, Some(("kubernetes", "/pki/ca.crt".to_owned())));
    }
}
