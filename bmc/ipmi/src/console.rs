//! Serial console of a machine over its own session: drives [`crate::sol`]. A reader that stops reading stops the
//! BMC. Dropping the stream releases the console and closes the session in the background.

use std::time::Instant;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::mpsc,
    time,
};
use tracing::debug;

use crate::{
    client::{Client, ClientError},
    command::payload::{ActivateConsole, DeactivateConsole},
    session::Retry,
    sol::Sol,
};

/// Characters that wait in each direction.
const STREAM_BUFFER_BYTES: usize = 8192;
/// Size in bytes of one read.
const READ_CHUNK_BYTES: usize = 1024;

/// Activates the console in this session. The stream ends with the console or its session.
///
/// # Errors
/// As [`Client::request`]; another session may have the console.
pub async fn open(client: Client, retry: Retry) -> Result<DuplexStream, ClientError> {
    // Characters that arrive before the listener exists would be lost.
    let incoming = client.listen().await?;
    let limits = client.request(&ActivateConsole).await?;
    let (ours, theirs) = tokio::io::duplex(STREAM_BUFFER_BYTES);
    let sol = Sol::new(limits.most, retry);
    tokio::spawn(async move {
        run(&client, sol, incoming, ours).await;
        if let Err(error) = client.request(&DeactivateConsole).await {
            debug!(%error, "failed to release the console");
        }
        client.close().await;
    });
    Ok(theirs)
}

async fn run(client: &Client, mut sol: Sol, mut incoming: mpsc::Receiver<Vec<u8>>, mut stream: DuplexStream) {
    let mut chunk = vec![0; READ_CHUNK_BYTES];
    let mut wanted = true;
    loop {
        while let Some(payload) = sol.transmit() {
            if client.serial(payload).await.is_err() {
                return;
            }
        }
        if !wanted {
            sol.leave(Instant::now());
        }
        if sol.is_over() {
            return;
        }
        let deadline = sol.deadline();
        tokio::select! {
            payload = incoming.recv() => {
                let Some(payload) = payload else { return };
                let characters = sol.receive(&payload, Instant::now());
                // Not acknowledged before there is space, so the BMC waits. If the reader is gone, the rest is still
                // sent.
                if !characters.is_empty() && stream.write_all(&characters).await.is_err() {
                    wanted = false;
                }
            }
            read = stream.read(&mut chunk), if wanted && sol.room() >= READ_CHUNK_BYTES => match read {
                Ok(count @ 1..) => sol.write(chunk.get(..count).unwrap_or_default(), Instant::now()),
                Ok(0) | Err(_) => wanted = false,
            },
            () = time::sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                sol.elapse(Instant::now());
            }
        }
    }
}
