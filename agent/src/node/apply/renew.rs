//! Gets the kubelet of a slot another certificate when its own has ended: the host was off, or the API server away, for longer than it
//! lasted. The kubelet asks for it as at its join, with the agent's certificate.
//!
//! ```text
//!   /run/bedplate/kubelet-bootstrap.conf (memory) <-- /etc/kubernetes/bootstrap-kubelet.conf ── restart kubelet ── await ── remove both
//! ```
//! kubeadm's drop-in has the kubelet look there, and it does so only while its own certificate is of no use. Called by `apply`.

use std::time::Duration;

use bedplate_api::machine::SlotName;
use bedplate_bootstrap::{JoinIdentity, join_kubeconfig};
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::super::effects::Parts;
use super::super::observe::leader;
use super::{ApplyError, unit_name};
use crate::slot::contents::SlotLink;
use crate::slot::inside::Inside;
use crate::slot::store::KeepSlotError;

/// Where a kubelet looks for a way to its first certificate: `--bootstrap-kubeconfig` of kubeadm's drop-in.
const LINK: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
/// Its name among what agent and slot share in memory.
const FILE: &str = "kubelet-bootstrap.conf";
/// How long the kubelet's restart may take.
const RESTART: Duration = Duration::from_secs(60);
/// So often it is looked whether somebody has approved the request.
const LOOK: Duration = Duration::from_secs(1);
/// How many times.
const LOOKS: u32 = 60;

/// Renews it. May be done twice.
pub(super) async fn renew(parts: &Parts, slot: SlotName) -> Result<(), ApplyError> {
    let Some(leader) = leader(parts, slot).await? else {
        return Err(ApplyError::Superseded("the slot does not run any more"));
    };
    let credential = parts.credentials.current().await.map_err(ApplyError::Credential)?;
    let filled = parts.on_disk(move |slots| slots.filled(slot)).await?;
    let endpoint = filled.and_then(|filled| filled.template.kubernetes.api_server_endpoint);
    let identity = JoinIdentity {
        endpoint: endpoint.as_deref().unwrap_or(&credential.server),
        ca: &credential.ca_pem,
        certificate: &credential.certificate_pem,
        key: &credential.key_pem,
    };
    let content = Zeroizing::new(join_kubeconfig(&identity).into_bytes());
    let root = crate::operation::slot::root_of(&parts.root, leader);
    let given = {
        let root = root.clone();
        parts.on_disk(move |slots| {
            slots.share(slot, FILE, &content)?;
            let link = SlotLink { path: LINK.to_owned(), target: format!("/run/bedplate/{FILE}") };
            Ok(Inside::open(&root)?.link(&link)?)
        })
    };
    let renewed = match given.await {
        Ok(()) => restarted(parts, slot, leader).await,
        Err(error) => Err(error.into()),
    };
    // The agent's own key is in it.
    let taken_back = parts.on_disk(move |slots| {
        let path = slots.places().shared(slot).join(FILE);
        crate::file::remove_optional(&path).map_err(|source| KeepSlotError::File {
            act: "remove",
            path,
            source,
        })?;
        Ok(Inside::open(&root)?.remove(LINK)?)
    });
    taken_back.await?;
    renewed
}

async fn restarted(parts: &Parts, slot: SlotName, leader: crate::bus::Leader) -> Result<(), ApplyError> {
    let kubelet = unit_name("kubelet.service")?;
    let units = parts.machines.units(leader);
    units.reset_failed(&kubelet).await?;
    units.restart(&kubelet, RESTART).await?;
    for _ in 0..LOOKS {
        let ends = parts.on_disk(move |slots| Ok(slots.kubelet_certificate_ends(slot))).await?;
        if ends.is_some_and(|ends| ends > Timestamp::now()) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    Err(ApplyError::KubeletCertificate)
}
