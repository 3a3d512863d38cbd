//! Response bodies: bytes in memory, or a part of a file streamed in chunks.
//!
//! What the page cache holds is read where it is asked for (`preadv2` with `RWF_NOWAIT`); only what must come from the disk
//! costs a hand-over to a thread that may wait. A client that takes nothing thus holds one chunk and no thread.
//!
//! Root images wait for a permit in a fair queue; a body that waits sends a little every few seconds, so that no client
//! takes the queue for a dead server. A body that loses its permit does so again until its next turn. `OnSent` is called when all was handed
//! to the kernel (`bedplate_process::listen::socket`).

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bedplate_process::listen::socket::{Completions, OnSent};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::task::JoinHandle;
use tokio::time::Interval;

use super::queue::Place;
use super::streams::Stream;

/// Size in bytes of one read of a file, and the memory limit per client.
const READ_CHUNK_BYTES: u64 = 64 << 10;

/// Bytes that a waiting body sends each [`TRICKLE_EVERY`].
const TRICKLE_BYTES: u64 = 4 << 10;

/// Less than any client's patience.
const TRICKLE_EVERY: Duration = Duration::from_secs(5);

/// A body.
pub struct Payload {
    source: Source,
    remaining: u64,
    on_sent: Option<(OnSent, Arc<Completions>)>,
    stream: Option<Stream>,
}

enum Source {
    Memory(Bytes),
    File(FileSource),
}

struct FileSource {
    file: Arc<File>,
    /// Offset of the next chunk.
    offset: u64,
    /// A chunk that the disk has to bring.
    waiting: Option<JoinHandle<io::Result<Vec<u8>>>>,
    gate: Gate,
}

/// Permission to read the file at full speed.
enum Gate {
    /// No queue.
    Open,
    /// A place in the queue, and once it waits, the ticks of the small parts that it sends.
    Queued(Place, Option<Box<Interval>>),
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

    /// Makes a body of these bytes of a file, which has at least as many. If a place in the queue is given, they are sent in its turn.
    pub fn file(file: File, range: Range<u64>, place: Option<Place>) -> Self {
        let gate = place.map_or(Gate::Open, |place| Gate::Queued(place, None));
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

/// Reads these bytes from the page cache, at least one; `None` if the disk must be read, or if this file system does
/// not support the query.
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
        if let Gate::Queued(place, _) = &self.gate {
            place.took(bytes.len() as u64);
        }
        Poll::Ready(Ok(bytes))
    }
}

impl Gate {
    /// Returns the number of bytes that may be read now.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<u64> {
        if let Self::Queued(place, trickle) = self
            && place.poll(context).is_pending()
        {
            return trickle.get_or_insert_with(new_trickle).poll_tick(context).map(|_| TRICKLE_BYTES);
        }
        Poll::Ready(READ_CHUNK_BYTES)
    }
}

fn new_trickle() -> Box<Interval> {
    let mut trickle = tokio::time::interval(TRICKLE_EVERY);
    trickle.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    Box::new(trickle)
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
    use crate::http::queue::Queue;
    use crate::http::queue::tests::client;

    fn file_of(bytes: &[u8]) -> File {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("blob");
        std::fs::write(&path, bytes).unwrap();
        File::open(path).unwrap()
    }

    #[tokio::test]
    async fn a_part_of_a_file_comes_whole_and_never_more_than_a_chunk_at_once() {
        let all: Vec<u8> = (0..3 * READ_CHUNK_BYTES + 17).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let mut body = Payload::file(file_of(&all), 5..all.len() as u64, None);
        let mut got = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(!data.is_empty() && data.len() as u64 <= READ_CHUNK_BYTES, "{}", data.len());
            got.extend_from_slice(&data);
        }
        assert!(got == all[5..]);
    }

    #[tokio::test]
    async fn bytes_missing_in_the_page_cache_are_read_by_a_thread() {
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
        let queue = Arc::new(Queue::new(0, Arc::default()));
        let mut body = Payload::file(file_of(&[7; 100_000]), 0..100_000, Some(queue.enter(client(1, 1))));
        for part in 0..5 {
            let started = tokio::time::Instant::now();
            let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(data.len() as u64, TRICKLE_BYTES, "part {part}");
            assert!(started.elapsed() < LOADER_TIMEOUT, "part {part} after {:?}", started.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_lost_its_permit_waits_and_then_arrives_complete() {
        let all: Vec<u8> = (0..30 * READ_CHUNK_BYTES).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let queue = Arc::new(Queue::new(1, Arc::default()));
        let body = |n| Payload::file(file_of(&all), 0..all.len() as u64, Some(queue.enter(client(n, n))));
        let (mut slow, mut next) = (body(1), body(2));
        let mut got = slow.frame().await.unwrap().unwrap().into_data().unwrap().to_vec();
        assert_eq!(got.len() as u64, READ_CHUNK_BYTES);
        let mut size = async || next.frame().await.unwrap().unwrap().into_data().unwrap().len() as u64;
        assert_eq!([size().await, size().await], [TRICKLE_BYTES; 2]);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(size().await, READ_CHUNK_BYTES, "the slow client has taken nothing for 10 s");
        let part = slow.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(part.len() as u64, TRICKLE_BYTES);
        got.extend_from_slice(&part);
        drop(next);
        got.extend_from_slice(&slow.collect().await.unwrap().to_bytes());
        assert!(got == all, "{} bytes", got.len());
    }

    #[tokio::test]
    async fn a_file_that_shrank_ends_its_body_with_an_error() {
        let error = Payload::file(file_of(b"short"), 0..100, None).collect().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
