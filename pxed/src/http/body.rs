//! Response bodies: bytes in memory, or a part of a file streamed in big chunks.
//!
//! Root images wait for a permit in a fair queue; a body that waits sends a little every few seconds, so that no client
//! takes the queue for a dead server. Whoever asked to be told is told when all was handed to the kernel (`socket`).

use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Interval;

use super::counters::{Counted, Counters};
use super::socket::Completions;
use super::streams::Stream;

/// Bytes of a file that are read at once.
const CHUNK: u64 = 256 << 10;

/// Bytes that a waiting body sends each [`TRICKLE_EVERY`].
const TRICKLE: u64 = 4 << 10;

/// Less than any client's patience.
const TRICKLE_EVERY: Duration = Duration::from_secs(5);

/// Called once all of a body was sent.
pub type OnSent = Box<dyn FnOnce() + Send>;

/// A body.
pub struct Payload {
    source: Source,
    remaining: u64,
    on_sent: Option<(OnSent, Arc<Completions>)>,
    #[allow(dead_code, reason = "held, not read")]
    stream: Option<Stream>,
}

enum Source {
    Memory(Bytes),
    File(FileSource),
}

struct FileSource {
    reading: Reading,
    gate: Gate,
}

enum Reading {
    Idle(File),
    Busy(JoinHandle<io::Result<(File, Vec<u8>)>>),
    Done,
}

/// A place among the root images that are sent.
type Turn = (OwnedSemaphorePermit, Counted);

enum Gate {
    /// Nothing to wait for, or the permit that is held until the body ends.
    Open(#[allow(dead_code, reason = "held, not read")] Option<Turn>),
    /// In the queue.
    Waiting(Pin<Box<dyn Future<Output = Option<Turn>> + Send>>, Box<Interval>),
}

/// The fair queue of root images.
#[derive(Clone)]
pub struct Queue {
    /// Root images sent at once; first come, first served.
    pub permits: Arc<Semaphore>,
    /// Where those that are sent and those that wait are counted.
    pub counters: Arc<Counters>,
}

impl Payload {
    /// No body.
    pub fn empty() -> Self {
        Self::memory(Bytes::new())
    }

    /// Bytes in memory.
    pub fn memory(bytes: Bytes) -> Self {
        Self { remaining: bytes.len() as u64, source: Source::Memory(bytes), on_sent: None, stream: None }
    }

    /// These bytes of a file, which has at least as many; through the queue if one is given. Blocking: seeks.
    ///
    /// # Errors
    /// The file cannot be positioned.
    pub fn file(mut file: File, range: Range<u64>, queue: Option<Queue>) -> io::Result<Self> {
        file.seek(SeekFrom::Start(range.start))?;
        let gate = match queue {
            None => Gate::Open(None),
            Some(Queue { permits, counters }) => match permits.clone().try_acquire_owned() {
                Ok(permit) => Gate::Open(Some((permit, Counted::sending(counters)))),
                Err(_) => {
                    let mut trickle = tokio::time::interval(TRICKLE_EVERY);
                    trickle.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                    let queued = Counted::queued(counters.clone());
                    let turn = async move {
                        let permit = permits.acquire_owned().await.ok()?;
                        drop(queued);
                        Some((permit, Counted::sending(counters)))
                    };
                    Gate::Waiting(Box::pin(turn), Box::new(trickle))
                }
            },
        };
        let remaining = range.end.saturating_sub(range.start);
        let source = Source::File(FileSource { reading: Reading::Idle(file), gate });
        Ok(Self { source, remaining, on_sent: None, stream: None })
    }

    /// Holds a boot's place for a root image until the body is dropped.
    pub fn counted(mut self, stream: Option<Stream>) -> Self {
        self.stream = stream;
        self
    }

    /// Has `on_sent` called once all of it was handed to the kernel.
    pub fn tell(mut self, on_sent: OnSent, completions: Arc<Completions>) -> Self {
        self.on_sent = Some((on_sent, completions));
        self
    }

    fn ended(&mut self) {
        if self.remaining == 0
            && let Some((on_sent, completions)) = self.on_sent.take()
        {
            completions.push(on_sent);
        }
    }
}

fn read(mut file: File, count: u64) -> JoinHandle<io::Result<(File, Vec<u8>)>> {
    tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::with_capacity(usize::try_from(count).unwrap_or_default());
        let got = (&mut file).take(count).read_to_end(&mut bytes)?;
        if got as u64 != count {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"));
        }
        Ok((file, bytes))
    })
}

impl FileSource {
    fn poll_chunk(&mut self, remaining: u64, context: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        loop {
            match std::mem::replace(&mut self.reading, Reading::Done) {
                Reading::Done => return Poll::Ready(Err(io::Error::other("the body has ended"))),
                Reading::Idle(file) => {
                    let Poll::Ready(most) = self.gate.poll(context) else {
                        self.reading = Reading::Idle(file);
                        return Poll::Pending;
                    };
                    self.reading = Reading::Busy(read(file, most.min(remaining)));
                }
                Reading::Busy(mut task) => match Pin::new(&mut task).poll(context) {
                    Poll::Pending => {
                        self.reading = Reading::Busy(task);
                        return Poll::Pending;
                    }
                    Poll::Ready(result) => {
                        let (file, bytes) = result.map_err(io::Error::other)??;
                        let left = remaining.saturating_sub(bytes.len() as u64);
                        // With the permit, the next chunk is read while this one is sent.
                        self.reading = match &self.gate {
                            Gate::Open(_) if left > 0 => Reading::Busy(read(file, CHUNK.min(left))),
                            Gate::Open(_) | Gate::Waiting(..) => Reading::Idle(file),
                        };
                        return Poll::Ready(Ok(bytes));
                    }
                },
            }
        }
    }
}

impl Gate {
    /// How much may be read now.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<u64> {
        if let Self::Waiting(permit, trickle) = self {
            match permit.as_mut().poll(context) {
                Poll::Ready(permit) => *self = Self::Open(permit),
                Poll::Pending => return trickle.poll_tick(context).map(|_| TRICKLE),
            }
        }
        Poll::Ready(CHUNK)
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        if this.remaining == 0 {
            this.ended();
            return Poll::Ready(None);
        }
        let chunk = match &mut this.source {
            Source::Memory(bytes) => std::mem::take(bytes),
            Source::File(file) => match file.poll_chunk(this.remaining, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Ok(bytes)) => bytes.into(),
            },
        };
        this.remaining = this.remaining.saturating_sub(chunk.len() as u64);
        this.ended();
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}
