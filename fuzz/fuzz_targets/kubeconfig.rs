//! Kubeconfig of a workload cluster, which users write: any bytes make a client or are refused, never a panic; errors never have content.
#![no_main]

use std::sync::LazyLock;

use bedplate_workload::{ClusterKey, Connections};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

/// Text of the seeds that stands for a secret. No name of a field has it.
const SECRET: &str = "Correct+Horse";

/// A client starts a task. It never runs, because no future is polled.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    bedplate_process::tls::install_crypto_provider();
    Builder::new_current_thread().enable_all().build().expect("a runtime without threads can be built")
});

fuzz_target!(|input: &[u8]| {
    let _entered = RUNTIME.enter();
    let cluster = ClusterKey { namespace: "n".to_owned(), name: "c".to_owned(), uid: "1".to_owned() };
    if let Err(error) = Connections::default().connect(&cluster, input) {
        let text = format!("{error} {error:?}");
        assert!(!text.contains(SECRET) && text.len() < 512, "{text}");
    }
});
