//! Response bodies: bytes in memory, or a part of a file streamed in chunks.
//!
//! What the page cache holds is read where it is asked for (`preadv2` with `RWF_NOWAIT`); only what must come from the disk
//! costs a hand-over to a thread that may wait. A client that takes nothing thus holds one chunk and no thread.
//!
//! Root images wait for a permit in a fair queue; a body that waits sends a little every few seconds, so that no client
//! takes the queue for a dead server. Whoever asked to be told is told when all was handed to the kernel (`socket`).

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Interval;

use super::counters::{Counted, Counters};
use super::socket::Completions;
use super::streams::Stream;

/// Bytes of a file that are read at once; what each client may have in memory.
const CHUNK: u64 = 64 << 10;

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
    file: Arc<File>,
    /// Where the next chunk begins.
    offset: u64,
    /// A chunk that the disk has to bring.
    waiting: Option<JoinHandle<io::Result<Vec<u8>>>>,
    gate: Gate,
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

    /// These bytes of a file, which has at least as many; through the queue if one is given.
    pub fn file(file: File, range: Range<u64>, queue: Option<Queue>) -> Self {
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
        let source =
            Source::File(FileSource { file: Arc::new(file), offset: range.start, waiting: None, gate });
        Self { source, remaining, on_sent: None, stream: None }
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

/// What the page cache has of these bytes, at least one; none if the disk must be asked, or if this file system cannot say.
fn read_cached(file: &File, offset: u64, count: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; usize::try_from(count).unwrap_or_default()];
    match rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut bytes)], offset, ReadWriteFlags::NOWAIT) {
        Ok(0) => Err(shorter()),
        Ok(got) => {
            bytes.truncate(got);
            Ok(Some(bytes))
        }
        Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// All of these bytes, on a thread that may wait for the disk.
fn read_waiting(file: Arc<File>, offset: u64, count: u64) -> JoinHandle<io::Result<Vec<u8>>> {
    tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; usize::try_from(count).unwrap_or_default()];
        match file.read_exact_at(&mut bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(shorter()),
            result => result.map(|()| bytes),
        }
    })
}

fn shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was")
}

impl FileSource {
    fn poll_chunk(&mut self, remaining: u64, context: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        let bytes = if let Some(task) = &mut self.waiting {
            let result = std::task::ready!(Pin::new(task).poll(context));
            self.waiting = None;
            result.map_err(io::Error::other)??
        } else {
            let most = std::task::ready!(self.gate.poll(context)).min(remaining);
            match read_cached(&self.file, self.offset, most)? {
                Some(bytes) => bytes,
                None => {
                    self.waiting = Some(read_waiting(self.file.clone(), self.offset, most));
                    return self.poll_chunk(remaining, context);
                }
            }
        };
        self.offset = self.offset.saturating_add(bytes.len() as u64);
        Poll::Ready(Ok(bytes))
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("blob");
        std::fs::write(&path, bytes).unwrap();
        File::open(path).unwrap()
    }

    #[tokio::test]
    async fn a_part_of_a_file_comes_whole_and_never_more_than_a_chunk_at_once() {
        let all: Vec<u8> = (0..3 * CHUNK + 17).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let mut body = Payload::file(file_of(&all), 5..all.len() as u64, None);
        let mut got = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(!data.is_empty() && data.len() as u64 <= CHUNK, "{}", data.len());
            got.extend_from_slice(&data);
        }
        assert!(got == all[5..]);
    }

    #[tokio::test]
    async fn what_the_page_cache_does_not_tell_is_read_by_a_thread() {
        let all = vec![7; 1000];
        let read = read_waiting(Arc::new(file_of(&all)), 900, 100).await.unwrap().unwrap();
        assert_eq!(read, [7; 100]);
        let error = read_waiting(Arc::new(file_of(&all)), 900, 101).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Idle time after which a loader may abort a download.
    const LOADER_TIMEOUT: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn waiting_body_sends_a_part_before_any_loader_times_out() {
        let queue = Queue { permits: Arc::new(Semaphore::new(0)), counters: Arc::default() };
        let mut body = Payload::file(file_of(&[7; 100_000]), 0..100_000, Some(queue));
        for part in 0..5 {
            let begun = tokio::time::Instant::now();
            let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(data.len() as u64, TRICKLE, "part {part}");
            assert!(begun.elapsed() < LOADER_TIMEOUT, "part {part} after {:?}", begun.elapsed());
        }
    }

    #[tokio::test]
    async fn a_file_that_shrank_ends_its_body_with_an_error() {
        let error = Payload::file(file_of(b"short"), 0..100, None).collect().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
