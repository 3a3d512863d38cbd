//! Garbage collection: removes images that are not kept, then layers without an
//! image, the longest unused first.
//!
//! Layers that a running `ensure` of this process needs stay. The caller must keep the images of its mounted
//! slots: a layer below a mounted overlay must not be removed.
//!
//! Callers: the agent, before a new image and after a slot was replaced.

use std::collections::HashSet;
use std::fs;
use std::io;

use bedplate_api::id::Digest;

use super::stage;
use super::store::LayerStore;

/// Result of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Images removed.
    pub images: usize,
    /// Layers removed.
    pub layers: usize,
    /// Bytes of content that they had.
    pub bytes: u64,
    /// Layers kept.
    pub kept: usize,
}

impl LayerStore {
    /// Removes images that are neither in `keep` (digests of manifests or indexes) nor in use by an `ensure`.
    /// Blocking: removes trees.
    ///
    /// # Errors
    /// The store cannot be read, or another process has it (`WouldBlock`). A failed removal is only logged.
    pub fn collect(&self, keep: &[Digest]) -> io::Result<Collected> {
        if !self.own()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut collected = Collected::default();
        let alone = self.records();
        let wanted = self.forget(keep, &mut collected)?;
        let mut old = Vec::new();
        let mut unwanted = Vec::new();
        for diff_id in self.whole_layers()? {
            if wanted.contains(&diff_id) || self.inner.pins.contains(&diff_id) {
                collected.kept += 1;
            } else {
                unwanted.push((stage::used(self.layers(), &diff_id), diff_id));
            }
        }
        unwanted.sort_unstable();
        for (_, diff_id) in unwanted {
            let bytes = stage::whole(self.layers(), &diff_id).map_or(0, |record| record.bytes);
            // The pin is checked at the moment in which the layer loses its name.
            match self.inner.pins.unless_pinned(&diff_id, || stage::remove_layer(self.layers(), &diff_id)) {
                None => collected.kept += 1,
                Some(Ok(path)) => {
                    old.push(path);
                    collected.layers += 1;
                    collected.bytes += bytes;
                }
                Some(Err(error)) => tracing::warn!(layer = %diff_id, %error, "failed to remove a layer"),
            }
        }
        drop(alone);
        for path in old {
            if let Err(error) = stage::remove_tree(&path) {
                tracing::warn!(path = %path.display(), %error, "failed to remove a layer");
            }
        }
        Ok(collected)
    }

    /// Removes records of images that are not kept. Returns the layers of the others.
    fn forget(&self, keep: &[Digest], collected: &mut Collected) -> io::Result<HashSet<Digest>> {
        let kept = |digest: &Digest| keep.contains(digest) || self.inner.pins.contains(digest);
        let mut found = Vec::new();
        for entry in fs::read_dir(self.images())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json"));
            let own = name.and_then(|hex| format!("sha256:{hex}").parse::<Digest>().ok());
            let record = self.record(&path);
            found.extend(own.map(|own| (own, path, record)));
        }
        // An index' record and its manifest's keep each other.
        let images: HashSet<Digest> = found
            .iter()
            .filter_map(|(own, _, record)| record.as_ref().filter(|r| kept(own) || kept(&r.digest)))
            .map(|record| record.digest)
            .collect();
        let mut wanted = HashSet::new();
        for (_, path, record) in found {
            if let Some(record) = record.as_ref().filter(|record| images.contains(&record.digest)) {
                wanted.extend(record.layers.iter().copied());
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => collected.images += 1,
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "failed to remove the record of an image");
                    wanted.extend(record.into_iter().flat_map(|record| record.layers));
                }
            }
        }
        Ok(wanted)
    }

    fn whole_layers(&self) -> io::Result<Vec<Digest>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.layers())? {
            let name = entry?.file_name();
            let diff_id = name.to_str().and_then(|hex| format!("sha256:{hex}").parse::<Digest>().ok());
            found.extend(diff_id.filter(|diff_id| stage::is_whole(self.layers(), diff_id)));
        }
        Ok(found)
    }
}
