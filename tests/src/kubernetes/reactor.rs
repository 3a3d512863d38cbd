//! Thread that sends requests to an API server inside the server's network namespace.
//!
//! A socket belongs to the namespace of the thread that creates it. Tests call from threads of any namespace, with or without a
//! runtime of their own.

use std::fs::File;
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Handle of the thread. The thread and its tasks end when the handle is dropped.
#[derive(Debug)]
pub(super) struct Reactor {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    /// Starts the thread in the namespace of this name, or in the caller's namespace.
    pub(super) fn start(namespace: Option<&str>) -> Result<Self> {
        let open =
            |name| File::open(format!("/run/netns/{name}")).with_context(|| format!("no namespace {name}"));
        let file = namespace.map(open).transpose()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (started, handle) = mpsc::channel();
        let run = move || {
            let runtime = || {
                if let Some(file) = file {
                    setns(file, CloneFlags::CLONE_NEWNET).context("cannot enter the namespace")?;
                }
                Builder::new_current_thread().enable_all().build().context("no runtime")
            };
            match runtime() {
                Ok(runtime) => {
                    let _ = started.send(Ok(runtime.handle().clone()));
                    let _ = runtime.block_on(stopped);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        };
        let thread = std::thread::Builder::new().name("api-client".to_owned()).spawn(run)?;
        let handle = handle.recv().context("the client thread ended")??;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a future on the thread and waits for its result.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = mpsc::channel();
        self.handle.spawn(async move { drop(done.send(work.await)) });
        result.recv().map_err(|_| anyhow!("a request of the test panicked"))?
    }

    /// Starts a task that ends with the thread.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
