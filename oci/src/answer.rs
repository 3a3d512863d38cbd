//! Timeouts of a registry's answer: one for a small answer, one for each mebibyte of a large one. Otherwise a
//! registry that sends single bytes slowly would block its client without an end.
//!
//! Only the time spent waiting for the registry counts, not the time in which
//! its bytes are written. Caller: `registry`.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;

use crate::registry::Failure;

/// Number of bytes of a large answer after which the timeout restarts.
const PART_BYTES: usize = 1 << 20;

/// A blob's bytes from `offset` on.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) offset: u64,
    response: Response,
    limit: Duration,
    /// Time spent waiting for the current part.
    waited: Duration,
    /// Bytes received of the current part.
    taken: usize,
}

impl Answer {
    pub(crate) fn new(offset: u64, response: Response, limit: Duration) -> Self {
        Self { offset, response, limit, waited: Duration::ZERO, taken: 0 }
    }

    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let started = tokio::time::Instant::now();
        let left = self.limit.saturating_sub(self.waited);
        let Ok(chunk) = tokio::time::timeout(left, self.response.chunk()).await else {
            let (seconds, taken) = (self.limit.as_secs(), self.taken);
            return Err(Failure::Again {
                problem: format!("too slow: {taken} bytes within {seconds} s"),
                after: None,
            });
        };
        let chunk = chunk.map_err(Failure::transport)?;
        self.waited = self.waited.saturating_add(started.elapsed());
        self.taken = self.taken.saturating_add(chunk.as_ref().map_or(0, Bytes::len));
        if self.taken >= PART_BYTES {
            (self.waited, self.taken) = (Duration::ZERO, 0);
        }
        Ok(chunk)
    }
}

/// Runs a request with the timeout of a small answer.
pub(crate) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = |_| Failure::Again {
        problem: format!("too slow: no complete answer within {} s", limit.as_secs()),
        after: None,
    };
    tokio::time::timeout(limit, answer).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(180);

    /// Returns an answer of this number of pieces, each of this size and after this delay.
    fn answer(pieces: usize, size: usize, each: Duration) -> Answer {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let stream = futures::stream::unfold(pieces, move |left| async move {
            let rest = left.checked_sub(1)?;
            tokio::time::sleep(each).await;
            Some((Ok::<_, std::io::Error>(vec![7; size]), rest))
        });
        let response = axum::http::Response::new(reqwest::Body::wrap_stream(stream));
        Answer::new(0, response.into(), LIMIT)
    }

    async fn whole(answer: &mut Answer) -> Result<usize, Failure> {
        let mut taken = 0;
        while let Some(bytes) = answer.chunk().await? {
            taken += bytes.len();
        }
        Ok(taken)
    }

    #[tokio::test(start_paused = true)]
    async fn endlessly_dripping_answer_fails_at_the_timeout_of_a_part() {
        let started = tokio::time::Instant::now();
        let slow = whole(&mut answer(usize::MAX, 1, Duration::from_secs(19))).await.unwrap_err();
        let problem = "too slow: 9 bytes within 180 s".to_owned();
        assert_eq!(slow, Failure::Again { problem, after: None });
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs());
        let endless = std::future::pending::<Result<(), Failure>>();
        let slow = within(LIMIT, endless).await.unwrap_err();
        let problem = "too slow: no complete answer within 180 s".to_owned();
        assert_eq!(slow, Failure::Again { problem, after: None });
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs() * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_slowly_and_steadily_may_take_for_long() {
        let started = tokio::time::Instant::now();
        let taken = whole(&mut answer(40, 256 << 10, Duration::from_secs(40))).await;
        assert_eq!(taken, Ok(10 << 20));
        assert_eq!(started.elapsed().as_secs(), 1600);
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_waiting_reader_does_not_count() {
        let mut answer = answer(10, 1, Duration::from_secs(10));
        while answer.chunk().await.unwrap().is_some() {
            tokio::time::sleep(LIMIT).await;
        }
    }
}
