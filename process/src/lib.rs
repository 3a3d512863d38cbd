//! The shell around a Bedplate program: logs, signals, systemd, tasks, exit
//! codes, health and metrics, its manual, the way to its API server.
//!
//! Knows nothing of what the program does. Called by `main.rs` and `run.rs` of
//! pxed, the agent and the controller, and by `bedplate`.
//!
//! ```no_run
//! use std::{process::ExitCode, sync::Arc, time::Duration};
//! use bedplate_process::{exit, exit::Failure, health, liveness, liveness::Liveness, logging, notify::Notifier, signals::Signals, tasks::Tasks, tls};
//!
//! fn main() -> ExitCode {
//!     exit::finish("pxed", start())
//! }
//!
//! fn start() -> Result<(), Failure> {
//!     tls::install_crypto_provider();
//!     let arguments = logging::LogArguments::default(); // #[command(flatten)] in the program's clap struct
//!     logging::start("pxed", &arguments).map_err(Failure::configuration)?;
//!     tokio::runtime::Runtime::new().map_err(Failure::failed)?.block_on(run())
//! }
//!
//! async fn run() -> Result<(), Failure> {
//!     let mut signals = Signals::install()?;
//!     let notifier = Notifier::from_environment();
//!     let tasks = Tasks::new(signals.shutdown());
//!     let registry = Arc::new(prometheus_client::registry::Registry::default());
//!     let listener = health::bind("127.0.0.1:9067".parse().expect("a literal address")).await?;
//!     let liveness = Liveness::new(signals.shutdown());
//!     let pulse = liveness.part("health", liveness::SILENCE_TIMEOUT); // one for each loop
//!     tasks.spawn("health", health::serve(listener, Arc::new(health::AlwaysReady), registry, pulse, signals.shutdown()));
//!     notifier.spawn_watchdog(&tasks, signals.shutdown(), move || liveness.check());
//!     notifier.ready("serving");
//!     while signals.reload_requested().await {
//!         notifier.reloading();
//!         // read the configuration again; a bad one leaves the old one in force
//!         notifier.ready("serving");
//!     }
//!     notifier.stopping("draining");
//!     Ok(tasks.drain(Duration::from_secs(30), signals.hurry()).await?)
//! }
//! ```

pub mod backoff;
pub mod counter;
pub mod events;
pub mod exit;
pub mod family;
pub mod file;
pub mod health;
pub mod kubeconfig;
pub mod lease;
pub mod listen;
pub mod liveness;
pub mod lock;
pub mod log_pace;
pub mod logging;
pub mod manual;
pub mod notify;
pub mod program;
pub mod proxy;
pub mod reconcile;
pub mod shutdown;
pub mod signals;
pub mod task_set;
pub mod tasks;
pub mod tls;
pub mod token_bucket;

/// An error of any kind on its way to the edge, where [`exit::finish`] prints it with its causes.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
