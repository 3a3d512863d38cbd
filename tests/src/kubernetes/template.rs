//! etcd directory of a cluster in which everything is installed. It is created once for each version of Kubernetes and of `deploy/`,
//! stored in the cache, and copied for each API server.
//!
//! The directory does not contain the API server's certificates, because each server has its own authority. Policies with parameters
//! of our kinds are omitted too. A server that finds them at its start looks up those kinds before it serves them, and retries only
//! after 30 s. These policies are created when the server is ready.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Content, Kubernetes, Objects, programs};
use crate::guard::Directory;

/// Version of the procedure that creates the directory.
const TEMPLATE_REVISION: u32 = 2;
/// Maximum time until etcd has ended.
const ETCD_TIMEOUT: Duration = Duration::from_secs(60);
/// Size of a page in bytes.
const PAGE_BYTES: usize = 4096;
const NAME: &str = "installed-";

/// File with the objects that are created when the API server is ready.
const LATE: &str = "late.json";

/// Copies etcd's directory to a new place, and makes it first if it is missing. Returns the objects that the caller must create
/// when the API server is ready.
///
/// # Errors
/// An API server cannot be started or installed, or a file cannot be copied.
pub(super) fn copy_to(place: &Path) -> Result<Vec<Value>> {
    let cache = programs()?.parent().context("a cache")?.to_owned();
    let template = cache.join(format!("{NAME}{:016x}", key()?));
    let lock = cache.join("installed.lock");
    let lock = File::options().create(true).append(true).open(&lock).context("cannot open the lock")?;
    // Several processes may copy concurrently. None makes or removes a directory meanwhile.
    lock.lock_shared()?;
    if !template.is_dir() {
        lock.unlock()?;
        lock.lock()?;
        if !template.is_dir() {
            make(&cache, &template)?;
        }
    }
    copy(&template.join("etcd"), place)?;
    serde_json::from_slice(&fs::read(template.join(LATE))?).context("not a list of objects")
}

/// Identifies what is installed: the programs' versions and all files that are applied.
fn key() -> Result<u64> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut hasher = DefaultHasher::new();
    TEMPLATE_REVISION.hash(&mut hasher);
    programs()?.file_name().hash(&mut hasher);
    for directory in ["deploy", "api/crds"] {
        hash(&root.join(directory), &mut hasher)?;
    }
    Ok(hasher.finish())
}

fn hash(directory: &Path, hasher: &mut DefaultHasher) -> Result<()> {
    for path in entries(directory)? {
        path.file_name().hash(hasher);
        if path.is_dir() {
            hash(&path, hasher)?;
        } else {
            fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?.hash(hasher);
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Creates the directory, and removes those of other versions.
fn make(cache: &Path, template: &Path) -> Result<()> {
    let mut kubernetes = Kubernetes::start_at(Ipv4Addr::LOCALHOST.into(), None, Content::Nothing)?;
    kubernetes.install()?;
    let late = take_late(kubernetes.objects()?)?;
    kubernetes.stop_server();
    kubernetes.etcd.terminate(ETCD_TIMEOUT)?;
    let new = Directory::within(cache, "installed")?;
    let place = new.path().join("template");
    copy(&kubernetes.path("etcd"), &place.join("etcd"))?;
    fs::write(place.join(LATE), serde_json::to_vec(&late)?)?;
    for old in entries(cache)? {
        let name = old.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(NAME) {
            fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    fs::rename(place, template).with_context(|| format!("cannot create {}", template.display()))
}

/// Deletes the objects that must be created later, and returns them.
fn take_late(objects: &Objects) -> Result<Vec<Value>> {
    let mut late = Vec::new();
    for mut policy in objects.list("validatingadmissionpolicy", "")? {
        if policy["spec"]["paramKind"].is_null() {
            continue;
        }
        let name = policy["metadata"]["name"].as_str().context("a policy without a name")?.to_owned();
        objects.delete("validatingadmissionpolicy", &name)?;
        policy["metadata"] = json!({ "name": name, "labels": policy["metadata"]["labels"] });
        if let Some(fields) = policy.as_object_mut() {
            fields.remove("status");
        }
        late.push(policy);
    }
    Ok(late)
}

/// Copies etcd's directory. etcd allocates 64 MiB of its log ahead of use; only the pages with content are copied.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for path in entries(from)? {
        let to = to.join(path.file_name().context("an entry without a name")?);
        let problem = || format!("cannot copy {} to {}", path.display(), to.display());
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => copy(&path, &to)?,
            // Allocated for the next part of the log.
            Some("tmp") => {}
            Some("wal") => {
                let content = fs::read(&path).with_context(problem)?;
                let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                let pages = used.next_multiple_of(PAGE_BYTES).min(content.len());
                fs::write(&to, content.get(..pages).unwrap_or_default()).with_context(problem)?;
            }
            _ => drop(fs::copy(&path, &to).with_context(problem)?),
        }
    }
    Ok(())
}
