//! The floor: the writes alone. A loop that knows what to write sends each Machine the apply of a first choice, with as many concurrent writes
//! as the controller has workers for a kind: no watch, no decision, no queue. Every controller waits for the API server and etcd at least so.

use std::time::Instant;

use anyhow::Result;
use bedplate_api::machine::Machine;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Api;
use serde_json::{Value, json};

use super::Round;
use super::site::{Size, apply, condition};

/// Name of the subject in the rows.
pub(super) const FLOOR: &str = "the writes alone, 8 concurrent";
/// Number of workers that Bedplate's controller has for a kind.
const WORKER_COUNT: usize = 8;

impl Round<'_> {
    /// The writes alone.
    pub(super) async fn floor(&mut self) -> Result<()> {
        let site = self.site(true).await?;
        let machines: Api<Machine> = Api::all(site.client.clone());
        let (server, started) = (site.processor()?, Instant::now());
        let write = |number: usize| {
            let (machines, status) = (machines.clone(), status(number, self.size.configurations));
            async move { apply(&machines, number, "floor", &status).await }
        };
        let all = stream::iter((0..self.size.machines).map(write));
        all.buffer_unordered(WORKER_COUNT).try_collect::<()>().await?;
        let (took, server) = (started.elapsed().as_secs_f64(), site.processor()? - server);
        self.written(FLOOR, took, server)?;
        Ok(())
    }
}

/// Status of a Machine that has no Node yet.
fn status(number: usize, configurations: usize) -> Value {
    let name = Size::configuration(number % configurations);
    let conditions =
        [condition("ConfigurationPending", false, "Selected"), condition("Ready", false, "WaitingForNode")];
    json!({ "phase": "Paving", "conditions": conditions,
        "selected": { "name": name, "version": 1, "source": "Selector" } })
}
