//! A TFTP server of one folder, to try real clients and load generators against the engine by hand.
//!
//! Not a product: `standalone ADDRESS:PORT FOLDER [SPIN-MICROSECONDS]`. Reads every file into memory at the start; runs until killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate_tftp::content::{Files, OpenError, Outcome, Request};
use bedplate_tftp::server::Server;
use bedplate_tftp::settings::Settings;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

struct Folder(HashMap<String, Bytes>);

impl Files for Folder {
    fn open(&self, request: &Request<'_>) -> Result<Bytes, OpenError> {
        self.0.get(request.name).cloned().ok_or(OpenError::NotFound)
    }

    fn finished(&self, _: &Request<'_>, _: Outcome, _: u64) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, folder, more @ ..] = arguments.as_slice() else {
        return Err("usage: standalone ADDRESS:PORT FOLDER [SPIN-MICROSECONDS]".into());
    };
    let mut files = HashMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?.into());
    }
    let mut settings = Settings { listen: vec![address.parse()?], ..Settings::default() };
    if let [spin] = more {
        settings.spin = Duration::from_micros(spin.parse()?);
    }
    let server = Server::bind(settings, Arc::new(Folder(files)))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(server.run(CancellationToken::new()))?;
    Ok(())
}
