//! A connection's byte stream with two additions: a client that takes nothing for too long is cut off, and whoever
//! waits for the end of a body is told when everything before it was handed to the kernel.
//!
//! hyper flushes the stream whenever its own buffer is empty: that is when completions run.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::body::OnSent;

/// Bytes that a client must take within each stall time while there is something to take.
const MIN_PROGRESS: u64 = 32 << 10;

/// What is to be called once all that hyper buffered so far is with the kernel.
#[derive(Default)]
pub struct Completions {
    waiting: Mutex<Vec<OnSent>>,
}

impl Completions {
    pub(super) fn push(&self, on_sent: OnSent) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(on_sent);
    }

    pub(super) fn run(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for on_sent in waiting {
            on_sent();
        }
    }
}

/// The stream.
pub struct Guarded<S> {
    stream: S,
    completions: std::sync::Arc<Completions>,
    stall: Duration,
    written: u64,
    blocked: Option<Blocked>,
}

/// The client does not take what there is.
struct Blocked {
    until: Pin<Box<Sleep>>,
    written: u64,
}

impl<S> Guarded<S> {
    /// Cuts `stream` off when a client takes less than 32 KiB of what there is within `stall`.
    pub fn new(stream: S, completions: std::sync::Arc<Completions>, stall: Duration) -> Self {
        Self { stream, completions, stall, written: 0, blocked: None }
    }

    fn guard<T>(&mut self, poll: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            return poll;
        }
        let blocked = self.blocked.get_or_insert_with(|| Blocked {
            until: Box::pin(tokio::time::sleep(self.stall)),
            written: self.written,
        });
        while blocked.until.as_mut().poll(context).is_ready() {
            if self.written.saturating_sub(blocked.written) < MIN_PROGRESS {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")));
            }
            blocked.written = self.written;
            blocked.until.as_mut().reset(Instant::now() + self.stall);
        }
        Poll::Pending
    }

    fn count(&mut self, poll: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = poll {
            self.written = self.written.saturating_add(*count as u64);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
            self.blocked = None;
            self.completions.run();
        }
        self.guard(poll, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(context);
        self.guard(poll, context)
    }
}
