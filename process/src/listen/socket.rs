//! Byte stream of a connection with two additions. A client that does not read for too long is disconnected.
//! A caller that waits for the end of a body is notified when everything before it was passed to the kernel.
//!
//! hyper flushes the stream whenever its own buffer is empty: that is when completions run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::progress::Progress;
use super::{Counters, Cut};
use crate::lock::Lock;

/// Minimum number of bytes that a client must read within the stall time while
/// data is pending. Each such amount restarts the time.
const MIN_PROGRESS: u64 = 32 << 10;

/// Callback for a body that is sent completely.
pub type OnSent = Box<dyn FnOnce() + Send>;

/// Functions to call once the kernel has all that hyper buffered so far.
#[derive(Default)]
pub struct Completions {
    waiting: Lock<Vec<OnSent>>,
}

impl fmt::Debug for Completions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Completions").finish_non_exhaustive()
    }
}

impl Completions {
    /// Registers `on_sent`, called when the kernel has all that is buffered now.
    pub fn push(&self, on_sent: OnSent) {
        self.waiting.lock().push(on_sent);
    }

    /// Runs the pending callbacks.
    pub fn run(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for on_sent in waiting {
            on_sent();
        }
    }
}

/// The stream.
pub struct Guarded<S> {
    stream: S,
    completions: Arc<Completions>,
    progress: Arc<Progress>,
    stall: Duration,
    counters: Arc<Counters>,
    written: u64,
    blocked: Option<Blocked>,
}

/// The client does not take what there is.
struct Blocked {
    until: Pin<Box<Sleep>>,
    /// Bytes written when `until` was set.
    written: u64,
}

impl<S> Guarded<S> {
    /// Cuts `stream` off when a client takes less than 32 KiB of what there is within `stall`.
    pub fn new(
        stream: S,
        (completions, progress): (Arc<Completions>, Arc<Progress>),
        stall: Duration,
        counters: Arc<Counters>,
    ) -> Self {
        Self { stream, completions, progress, stall, counters, written: 0, blocked: None }
    }

    fn guard<T>(&mut self, poll: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            return poll;
        }
        let (progress, stall, written) = (&self.progress, self.stall, self.written);
        let blocked = self.blocked.get_or_insert_with(|| {
            progress.block();
            Blocked { until: Box::pin(tokio::time::sleep(stall)), written }
        });
        if blocked.until.as_mut().poll(context).is_ready() {
            self.counters.cut.one(Cut::Stalled);
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not receive data",
            )));
        }
        Poll::Pending
    }

    fn count(&mut self, poll: &Poll<io::Result<usize>>) {
        let Poll::Ready(Ok(count)) = poll else { return };
        self.counters.sent(*count);
        self.progress.took(*count as u64);
        self.written = self.written.saturating_add(*count as u64);
        if let Some(blocked) = &mut self.blocked
            && self.written.saturating_sub(blocked.written) >= MIN_PROGRESS
        {
            blocked.written = self.written;
            blocked.until.as_mut().reset(Instant::now() + self.stall);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        if poll.is_pending() {
            self.progress.read();
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(&poll);
        self.guard(poll, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count(&poll);
        self.guard(poll, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(poll, Poll::Ready(Ok(()))) {
            if self.blocked.take().is_some() {
                self.progress.free();
            }
            self.completions.run();
        }
        self.guard(poll, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(context);
        self.guard(poll, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    /// Starts a server that writes without end to a client with a buffer of
    /// 64 KiB, until it disconnects the client.
    fn serving() -> (DuplexStream, Arc<Counters>, tokio::task::JoinHandle<(io::Error, Instant)>) {
        let (server, client) = tokio::io::duplex(64 << 10);
        let counters = Arc::new(Counters::default());
        let mut guarded = Guarded::new(server, (Arc::default(), Arc::default()), STALL, counters.clone());
        let writing = tokio::spawn(async move {
            loop {
                if let Err(error) = guarded.write_all(&[0; 8 << 10]).await {
                    return (error, Instant::now());
                }
            }
        });
        (client, counters, writing)
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_stops_reading_is_disconnected_after_one_stall_time() {
        let (mut client, counters, writing) = serving();
        // Enough to restart the time, right after it started.
        tokio::time::sleep(Duration::from_secs(1)).await;
        client.read_exact(&mut vec![0; 40 << 10]).await.unwrap();
        let last = Instant::now();
        let (error, at) = writing.await.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let lived = at - last;
        assert!(STALL <= lived && lived < STALL + Duration::from_millis(100), "{lived:?}");
        assert_eq!(counters.cut.get(Cut::Stalled), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_little_is_cut_off_and_a_slow_one_is_not() {
        let (mut client, counters, writing) = serving();
        for _ in 0..10 {
            tokio::time::sleep(STALL - Duration::from_secs(1)).await;
            client.read_exact(&mut vec![0; 40 << 10]).await.unwrap();
        }
        assert!(!writing.is_finished(), "slow, and it takes enough");
        let last = Instant::now();
        while !writing.is_finished() {
            // It answers a second's patience with a byte.
            tokio::time::sleep(Duration::from_secs(1)).await;
            if client.read_u8().await.is_err() {
                break;
            }
        }
        let (_, at) = writing.await.unwrap();
        assert!(at - last <= STALL + Duration::from_secs(1), "{:?}", at - last);
        assert_eq!(counters.cut.get(Cut::Stalled), 1);
        assert!(counters.sent_bytes.load(std::sync::atomic::Ordering::Relaxed) >= 10 * MIN_PROGRESS);
    }
}
