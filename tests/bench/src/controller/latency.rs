//! Time until a change is answered, as a watching client sees it.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bedplate_api::configuration::MachineConfiguration;
use bedplate_api::machine::{Machine, Phase};
use bedplate_api::version::MachineConfigurationVersion;
use futures::StreamExt as _;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::json;

use super::site::{Site, Size, apply, condition, template};

/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two edits of configurations.
const EDIT_DELAY: Duration = Duration::from_millis(400);

/// Edits `edits` configurations one after the other: milliseconds from each request until the version with the edit exists.
pub(super) async fn edits(site: &Site, edits: usize, first: usize) -> Result<Vec<f64>> {
    let configurations: Api<MachineConfiguration> = Api::all(site.client.clone());
    let versions: Api<MachineConfigurationVersion> = Api::all(site.client.clone());
    let mut seen = watch(&versions).await?;
    let mut times = Vec::new();
    for edit in first..first + edits {
        let name = Size::configuration(edit % site.size.configurations);
        let wanted: bedplate_api::configuration::Template = serde_json::from_value(template(edit))?;
        let body = json!({ "spec": { "template": template(edit) } });
        let started = Instant::now();
        configurations.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await?;
        seen.until(|version| version.spec.configuration_name == name && version.spec.template == wanted)
            .await?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        tokio::time::sleep(EDIT_DELAY).await;
    }
    Ok(times)
}

/// Has `changes` machines switched off and on one after the other: milliseconds from each request until the phase follows.
pub(super) async fn phases(site: &Site, changes: usize) -> Result<Vec<f64>> {
    let machines: Api<Machine> = Api::all(site.client.clone());
    let mut seen = watch(&machines).await?;
    let mut times = Vec::new();
    for change in 0..changes {
        let number = (change / 2 * 37) % site.size.machines;
        let on = change % 2 == 1;
        let reason = if on { "On" } else { "PoweringOn" };
        let status = json!({ "conditions": [condition("PoweredOn", on, reason)] });
        let name = Size::machine(number);
        let started = Instant::now();
        apply(&machines, number, "bench-power", &status).await?;
        let shown = |machine: &Machine| {
            let phase = machine.status.as_ref().and_then(|status| status.phase);
            machine.metadata.name.as_ref() == Some(&name)
                && phase.is_some_and(|p| (p == Phase::PoweringOn) != on)
        };
        seen.until(shown).await?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(times)
}

type Events<K> = std::pin::Pin<Box<dyn futures::Stream<Item = kube::Result<WatchEvent<K>>> + Send>>;

/// A watch from now on.
pub(crate) struct Seen<K>(Events<K>);

pub(crate) async fn watch<K>(api: &Api<K>) -> Result<Seen<K>>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let list = api.list_metadata(&ListParams::default().limit(1)).await?;
    let version = list.metadata.resource_version.context("a list without a version")?;
    Ok(Seen(Box::pin(api.watch(&WatchParams::default(), &version).await?)))
}

impl<K> Seen<K> {
    pub(crate) async fn until(&mut self, is: impl Fn(&K) -> bool) -> Result<()> {
        let mut found = pin!(async {
            loop {
                match self.0.next().await.context("the watch has ended")?? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) if is(&object) => return Ok(()),
                    WatchEvent::Error(error) => bail!("{error:?}"),
                    _ => {}
                }
            }
        });
        tokio::time::timeout(ANSWER_TIMEOUT, &mut found).await.context("it was not answered")?
    }
}
