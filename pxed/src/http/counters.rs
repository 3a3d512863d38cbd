//! Request counters of the plain listener: the route, the result, and waits for a root image.
//!
//! Connections and bytes are counted by `listen`.

use std::sync::atomic::AtomicU64;

use bedplate_process::counter::{By, Label, Level, labels};
use hyper::StatusCode;

use super::path::What;

labels! {
    /// Requested route.
    pub enum Route {
        /// A loader's file.
        Loader => "loader",
        /// The script.
        Script => "script",
        /// The kernel.
        Kernel => "kernel",
        /// The initrd.
        Initrd => "initrd",
        /// The root file system.
        Rootfs => "rootfs",
        /// The seed.
        Seed => "seed",
        /// A report of a stage.
        Stage => "stage",
        /// A path that is none of these.
        Unknown => "unknown",
    }
}

labels! {
    /// Class of the response.
    pub enum Class {
        /// 200 and 206.
        Success => "2xx",
        /// 304.
        Redirection => "3xx",
        /// Refused: an invalid request, or an expired boot.
        ClientError => "4xx",
        /// Held, or our fault.
        ServerError => "5xx",
    }
}

labels! {
    /// Result of a request for a seed.
    pub enum SeedAnswer {
        /// The seed was issued.
        Given => "issued",
        /// The seed had already been issued.
        Again => "requested_again",
        /// The machine is held: no image for it yet.
        Held => "blocked",
        /// The client's address is not leased to the boot's Machine.
        WrongAddress => "wrong_address",
        /// The boot's Machine is gone.
        Gone => "machine_deleted",
        /// The seed could not be created or recorded.
        Failed => "failed",
    }
}

/// The counters.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [By<Class>; Route::ALL.len()],
    /// Requests for seeds that named a boot.
    pub seeds: By<SeedAnswer>,
    /// Root images that are being sent.
    pub sending: Level,
    /// Root images that wait for their turn.
    pub queued: Level,
    /// Root images refused because their boot receives its own already.
    pub streams_refused: AtomicU64,
}

impl Counters {
    /// Counts an answer.
    pub fn answered(&self, what: Option<&What<'_>>, status: StatusCode) {
        let route = match what {
            Some(What::Loader(_)) => Route::Loader,
            Some(What::Script) => Route::Script,
            Some(What::Kernel) => Route::Kernel,
            Some(What::Initrd) => Route::Initrd,
            Some(What::Rootfs) => Route::Rootfs,
            Some(What::Seed) => Route::Seed,
            Some(What::Stage) => Route::Stage,
            None => Route::Unknown,
        };
        let class = match status.as_u16() / 100 {
            0..=2 => Class::Success,
            3 => Class::Redirection,
            4 => Class::ClientError,
            _ => Class::ServerError,
        };
        if let Some(by_class) = self.requests.get(route.index()) {
            by_class.one(class);
        }
    }

    /// Returns the number of requests for each route and class.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        let routes = Route::ALL.iter().zip(&self.requests);
        routes.flat_map(|(route, by_class)| {
            let route = route.word();
            by_class.all().map(move |(class, count)| (route, class, count))
        })
    }
}
