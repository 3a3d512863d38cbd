//! Fills a slot that does not run, until image, root and files are on disk.
//!
//! ```text
//!   unmount, clear ─ Secrets, image ─ record: Preparing ─ directories, mount ─ files of the version and of kubeadm ─ sync ─ Prepared
//! ```
//! May be killed at any point: a slot that is `Preparing` or empty is filled
//! again, and complete layers are reused. Called by `apply`.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_api::configuration::{NodeRole, SecretRef, Template};
use bedplate_api::id::{Digest, MachineName};
use bedplate_api::machine::{SlotName, VersionRef};
use bedplate_bootstrap::{Plane, template, unit};
use bedplate_oci::Access;
use bedplate_oci::node::{NodeImage, NodeSource, Progress};
use tokio_util::sync::CancellationToken;

use super::start::{SHARED, host_files};
use super::stop::unmount;
use super::{ApplyError, destination, job_error, reload, rendered};
use crate::bus::UnitName;
use crate::model::{ProviderId, Record, Stage, VersionFacts, other};
use crate::node::effects::{Parts, Say};
use crate::slot::contents::{self, Contents, Secrets, SlotFile, SlotLink, text};
use crate::slot::fill_record::{CRI_SOCKET, CRI_SOCKET_LABEL, Filled};

/// Timeout of a mount.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);
const PULL_KEY: &str = ".dockerconfigjson";
/// File of the registry's certificate authorities while the image is fetched.
const CA_FILE: &str = "registry-ca.pem";
const PULL_FILE: &str = "pull.json";

/// The selected version, as stored in the cluster.
struct Wanted {
    facts: VersionFacts,
    template: Template,
    /// The digest that its tag was resolved to, once for all Machines.
    image_digest: Option<Digest>,
    machine_uid: String,
}

/// Fills the slot with the version, unless another one is selected now.
pub(super) async fn prepare(
    parts: &Parts,
    slot: SlotName,
    version: &VersionRef,
    cancel: &CancellationToken,
    say: Say<'_>,
) -> Result<(), ApplyError> {
    let wanted = wanted(parts, version)?;
    let plane = if parts.home.follows_slot() { Plane::Standalone } else { Plane::Cluster { is_run: false } };
    template::check(&wanted.template, plane)?;
    // The plan never requests this.
    if parts.on_disk(move |slots| slots.look(slot, false)).await?.is_kept() {
        return Err(ApplyError::Superseded("the slot has a control plane and is kept"));
    }
    unmount(parts, slot).await?;
    let emptied = parts.on_disk(move |slots| {
        slots.keep_failed_log(slot)?;
        slots.clear(slot)
    });
    emptied.await?;
    say("reads the Secrets of the version".to_owned());
    let secrets = secrets(parts, &wanted.template).await?;
    // Fails on a template that cannot be rendered before gigabytes are fetched.
    let blank = Filled {
        template: wanted.template.clone(),
        layers: 1,
        cri_socket: CRI_SOCKET.to_owned(),
        node_name: None,
    };
    let contents = all_contents(parts, &wanted, &blank, &secrets)?;
    if !parts.home.follows_slot() {
        destination::check(parts, &wanted.template.kubernetes, &contents).await?;
    }
    let image = image(parts, slot, &wanted, cancel, say).await?;
    let filled = filled(&wanted.template, &image, None);
    let contents = all_contents(parts, &wanted, &filled, &secrets)?;
    fill(parts, slot, wanted, (filled, None), image, contents, say).await
}

/// Returns the content record of a slot.
fn filled(template: &Template, image: &NodeImage, node_name: Option<MachineName>) -> Filled {
    let cri_socket = image.labels.get(CRI_SOCKET_LABEL).map_or(CRI_SOCKET, String::as_str).to_owned();
    Filled { template: template.clone(), layers: image.layers.len(), cri_socket, node_name }
}

/// Fetches the image of a version that a claim runs.
pub(super) async fn fetch(
    parts: &Parts,
    slot: SlotName,
    version: &VersionRef,
    cancel: &CancellationToken,
    say: Say<'_>,
) -> Result<NodeImage, ApplyError> {
    let wanted = wanted(parts, version)?;
    template::check(&wanted.template, Plane::Cluster { is_run: false })?;
    image(parts, slot, &wanted, cancel, say).await
}

/// Content of a slot that a claim runs.
pub(super) struct ClaimedFill {
    /// The version.
    pub(super) version: VersionRef,
    /// Image of the slot.
    pub(super) image: NodeImage,
    /// The claim.
    pub(super) provider_id: ProviderId,
    /// Name of the Node and host name of the slot.
    pub(super) node_name: MachineName,
    /// Role of the Node: a control plane has more that outlives the slot's root.
    pub(super) role: NodeRole,
    /// Unit and scripts of the user data.
    pub(super) files: Vec<SlotFile>,
    /// Links that enable the unit.
    pub(super) links: Vec<SlotLink>,
}

/// Fills the slot for a claim. The user data takes the place of kubeadm.
pub(super) async fn fill_claimed(
    parts: &Parts,
    slot: SlotName,
    fill_with: ClaimedFill,
    say: Say<'_>,
) -> Result<(), ApplyError> {
    let ClaimedFill { version, image, provider_id, node_name, role, files, links } = fill_with;
    let mut wanted = wanted(parts, &version)?;
    unmount(parts, slot).await?;
    parts.on_disk(move |slots| slots.clear(slot)).await?;
    let secrets = secrets(parts, &wanted.template).await?;
    let mut contents = contents::make(&node_name, &wanted.machine_uid, &wanted.template, &secrets)?;
    contents.files.extend(files);
    contents.links.extend(links);
    wanted.template.kubernetes.role = role;
    let filled = filled(&wanted.template, &image, Some(node_name));
    fill(parts, slot, wanted, (filled, Some(provider_id)), image, contents, say).await
}

fn wanted(parts: &Parts, version: &VersionRef) -> Result<Wanted, ApplyError> {
    let seen = parts.seen();
    let (Some(facts), Some(object), Some(machine)) = (seen.version_facts(), &seen.version, &seen.machine)
    else {
        return Err(ApplyError::Superseded("the version was deleted"));
    };
    if facts.reference != *version {
        return Err(ApplyError::Superseded("another version is selected"));
    }
    Ok(Wanted {
        facts,
        template: object.spec.template.clone(),
        image_digest: object.spec.image_digest(object.status.as_ref()),
        machine_uid: machine.metadata.uid.clone().unwrap_or_default(),
    })
}

/// The values that the version's files name, each Secret read once.
async fn secrets(parts: &Parts, template: &Template) -> Result<Secrets, ApplyError> {
    let mut secrets = Secrets::new();
    let mut named: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for key in contents::secrets(template) {
        let place = (key.namespace.clone(), key.name.clone());
        named.entry(place).or_default().push(key.key.clone());
    }
    for ((namespace, name), keys) in named {
        let secret = SecretRef { namespace: namespace.clone(), name: name.clone() };
        let mut found = parts.decider.secret(&secret).await?;
        for key in keys {
            // A missing key is reported with the file that names it.
            if let Some(value) = found.data.remove(&key) {
                secrets.insert((namespace.clone(), name.clone(), key), value);
            }
        }
    }
    Ok(secrets)
}

/// Everything that is put into the root: the version's files, kubeadm's unit, and what kubeadm reads that is not in memory.
fn all_contents(
    parts: &Parts,
    wanted: &Wanted,
    filled: &Filled,
    secrets: &Secrets,
) -> Result<Contents, ApplyError> {
    let mut contents = contents::make(&parts.machine, &wanted.machine_uid, &filled.template, secrets)?;
    let rendered = rendered(parts, filled)?;
    let unit = unit::render(&rendered, &filled.template)?;
    let own = rendered.files.iter().filter(|file| !file.path.starts_with(SHARED)).chain(&unit.files);
    let own = own.map(|file| -> SlotFile { text(&file.path, file.mode, &file.content) });
    contents.files.extend(own);
    contents.links.push(SlotLink { path: unit.link.path, target: unit.link.target });
    Ok(contents)
}

/// Fetches the image with the pull secret of the version, if any. Canceled when the plan changes.
async fn image(
    parts: &Parts,
    slot: SlotName,
    wanted: &Wanted,
    cancel: &CancellationToken,
    say: Say<'_>,
) -> Result<NodeImage, ApplyError> {
    let spec = &wanted.template.image;
    let reference = match (&wanted.image_digest, spec.reference.contains('@')) {
        (Some(digest), false) => format!("{}@{digest}", spec.reference),
        _ => spec.reference.clone(),
    };
    let mut access = Access::default();
    if let Some(secret) = &spec.pull_secret_ref {
        let mut found = parts.decider.secret(secret).await?;
        let missing = || ApplyError::NoPullSecret { secret: secret.clone(), key: PULL_KEY };
        let value = found.data.remove(PULL_KEY).ok_or_else(missing)?;
        access.credentials_file = Some(parts.slots.places().shared(slot).join(PULL_FILE));
        parts.on_disk(move |slots| slots.share(slot, PULL_FILE, &value)).await?;
    }
    if let Some(authorities) = spec.ca_bundle.clone() {
        access.ca_file = Some(parts.slots.places().shared(slot).join(CA_FILE));
        parts.on_disk(move |slots| slots.share(slot, CA_FILE, authorities.as_bytes())).await?;
    }
    let source = NodeSource { reference, allow_tag: spec.allow_tag, access };
    // Layers that neither slot needs are deleted, so that there is space for the new image.
    let held = parts.on_disk(move |slots| slots.record(other(slot))).await?;
    let mut keep: Vec<Digest> = held.into_iter().map(|record| record.image_digest).collect();
    keep.extend(source.pinned());
    parts.images.keep_only(keep).await;
    let tell = |progress: Progress| say(progress_text(&progress));
    let image = tokio::select! {
        image = parts.images.ensure(&source, &tell) => Some(image),
        () = cancel.cancelled() => None,
    };
    forget_access(parts, slot);
    Ok(image.ok_or(ApplyError::Superseded("the plan has changed"))??)
}

/// Removes the credentials and authorities that an image was fetched with.
fn forget_access(parts: &Parts, slot: SlotName) {
    for name in [PULL_FILE, CA_FILE] {
        let path = parts.slots.places().shared(slot).join(name);
        if let Err(error) = bedplate_process::file::remove_optional(&path) {
            tracing::warn!(%error, path = %path.display(), "failed to delete the registry credentials from memory");
        }
    }
}

/// Removes the credentials that a killed agent has left of a fetch. A slot without a record would keep them until it is filled.
pub(in crate::node) fn forget_left_access(parts: &Parts) {
    for slot in SlotName::ALL {
        forget_access(parts, slot);
    }
}

fn progress_text(progress: &Progress) -> String {
    match progress {
        Progress::Resolving => "resolves the node image".to_owned(),
        Progress::Layers { whole, layers, done, total } => {
            let mib = |bytes: &u64| bytes >> 20;
            format!("fetches the node image: {whole} of {layers} layers, {} of {} MiB", mib(done), mib(total))
        }
        Progress::Retry { problem, wait } => {
            format!("failed to fetch the node image ({problem}), retrying in {} s", wait.as_secs())
        }
        Progress::Ready { .. } => "the node image is complete".to_owned(),
    }
}

async fn fill(
    parts: &Parts,
    slot: SlotName,
    wanted: Wanted,
    (filled, claim): (Filled, Option<ProviderId>),
    image: NodeImage,
    contents: Contents,
    say: Say<'_>,
) -> Result<(), ApplyError> {
    say("fills the slot".to_owned());
    let record = Record {
        version: wanted.facts.reference,
        template: wanted.facts.template,
        image_digest: image.digest,
        machine_uid: wanted.machine_uid,
        timeout_seconds: wanted.facts.timeout.as_secs(),
        min_ready_seconds: wanted.facts.node_ready.as_secs(),
        generation: 0,
        claim,
        stage: Stage::Preparing,
    };
    let (mount, role) = (parts.slots.places().mount_unit(slot), filled.template.kubernetes.role);
    let mut files = host_files(parts, slot, &record, &filled).await?;
    // The other files belong to the running slot until this one starts.
    files.retain(|file| file.path.file_name().is_some_and(|name| name.to_string_lossy() == mount));
    let started = record.clone();
    let changed = parts
        .on_disk(move |slots| {
            slots.write_record(slot, &started)?;
            slots.lay(slot, &image.layers)?;
            slots.write_filled(slot, &filled)?;
            slots.write_host(&files)
        })
        .await?;
    let mount: UnitName = mount.parse()?;
    reload(parts, &mount, changed).await?;
    let result = parts.units.start(&mount, MOUNT_TIMEOUT).await?;
    if !result.is_done() {
        return Err(job_error(parts, mount, result.as_str().to_owned()).await);
    }
    let whole = Record { stage: Stage::Prepared, ..record };
    let filling = parts.on_disk(move |slots| {
        slots.fill(slot, &contents, role)?;
        slots.sync(slot)?;
        slots.write_record(slot, &whole)
    });
    Ok(filling.await?)
}
