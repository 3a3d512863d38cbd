//! The floor: the writes alone. A loop that knows what to write sends each Machine the apply of a first choice, as many at once as the
//! controller has workers for a kind: no watch, no decision, no queue. What the API server and etcd take for it, every controller waits for.

use std::time::Instant;

use anyhow::Result;
use bedplate_api::machine::Machine;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Api;
use serde_json::{Value, json};

use super::Round;
use super::site::{Size, apply, condition};

/// What the rows say of it.
pub(super) const FLOOR: &str = "the writes alone, 8 at once";
/// Workers that ours has for a kind.
const WORKERS: usize = 8;

impl Round<'_> {
    /// The writes alone.
    pub(super) async fn floor(&mut self) -> Result<()> {
        let site = self.site(true).await?;
        let machines: Api<Machine> = Api::all(site.client.clone());
        let (server, begun) = (site.processor()?, Instant::now());
        let write = |number: usize| {
            let (machines, status) = (machines.clone(), status(number, self.size.configurations));
            async move { apply(&machines, number, "floor", &status).await }
        };
        let all = stream::iter((0..self.size.machines).map(write));
        all.buffer_unordered(WORKERS).try_collect::<()>().await?;
        let (took, server) = (begun.elapsed().as_secs_f64(), site.processor()? - server);
        self.written(FLOOR, took, server)?;
        Ok(())
    }
}

/// What is written of a Machine that has no Node yet.
fn status(number: usize, configurations: usize) -> Value {
    let name = Size::configuration(number % configurations);
    let conditions =
        [condition("ConfigurationPending", false, "Selected"), condition("Ready", false, "WaitingForNode")];
    json!({ "phase": "Paving", "conditions": conditions,
        "selected": { "name": name, "version": 1, "source": "Selector" } })
}
