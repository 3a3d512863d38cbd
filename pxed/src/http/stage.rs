//! Stage reports of stage-1 and of an agent that has no certificate yet. Any client that knows the boot's URL may
//! report. A report is shown and decides little: `userspace` of a boot whose seed was taken restarts the count of
//! power-on attempts (`power::plan`).

use std::time::{Duration, Instant};

use bedplate_api::id::MachineName;
use bedplate_api::reason::refusal::BootRefusal;
use bedplate_api::wire::{Stage, StageReport};
use bedplate_process::token_bucket::Rate;
use http_body_util::{BodyExt, Limited};
use hyper::{Response, StatusCode};
use jiff::Timestamp;

use super::body::Payload;
use super::route::{Routes, refuse, refuse_for};
use crate::boot::{Record, public_text};

/// Bytes of a report.
const MAX_BODY: usize = 16 << 10;

/// For the whole of a report.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Rate of one boot: stage-1 reports each failure, with growing delays between them.
const REPORTS: Rate = Rate { burst: 30, each: Duration::from_secs(2) };

pub(super) async fn report<B>(routes: &Routes, record: &Record, body: B, now: Timestamp) -> Response<Payload>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
    B::Error: std::fmt::Display,
{
    if routes.reports.take(record.id, REPORTS, Instant::now()).is_err() {
        let message = "this boot has sent too many reports; retry later";
        return refuse_for(REPORTS.each.as_secs(), BootRefusal::RateLimited, message);
    }
    let body = std::pin::pin!(body);
    let read = tokio::time::timeout(BODY_TIME, collect(body)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(refusal)) => return refusal,
        Err(_) => {
            return refuse(BootRefusal::BodyTooSlow, "the report did not arrive in 10 seconds");
        }
    };
    let report: StageReport = match serde_json::from_slice(&bytes) {
        Ok(report) => report,
        Err(error) => {
            return refuse(BootRefusal::InvalidReport, &format!("not a stage report: {error}"));
        }
    };
    match (report.stage, &report.failure) {
        (Stage::RootFs | Stage::Userspace | Stage::Enrolled, Some(failure)) => {
            let stage = report.stage.label();
            let failure = public_text(record.id, failure);
            let subject = record.opening.owner.machine().map(MachineName::as_str);
            // Reports are not authenticated. The newest failure is in the Machine's status.
            if let Some(omitted) = routes.boots.log_pace().admit("BootFailed", subject, Instant::now()) {
                let (machine, boot) = (record.opening.owner.display_name(), record.id.public_id());
                tracing::warn!(machine, %boot, stage, failure, omitted, "boot reported a failure");
            }
            routes.boots.failed(record, report.stage, &failure, now);
        }
        (Stage::RootFs | Stage::Userspace, None) => routes.boots.reached(record, report.stage, now),
        (stage, _) => {
            return refuse(
                BootRefusal::StageNotReported,
                &format!("stage {} is observed by pxed; hosts do not report it", stage.label()),
            );
        }
    }
    let mut response = Response::new(Payload::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

async fn collect<B>(body: std::pin::Pin<&mut B>) -> Result<bytes::Bytes, Response<Payload>>
where
    B: hyper::body::Body + Send,
    B::Error: std::fmt::Display,
{
    let body = body.map_err(|error| std::io::Error::other(error.to_string()));
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(refuse(BootRefusal::BodyTooLarge, "the report is larger than 16 KiB"))
        }
        Err(error) => Err(refuse(BootRefusal::InvalidBody, &format!("the report is incomplete: {error}"))),
    }
}
