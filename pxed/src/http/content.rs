//! Public content of a boot: loader, script, kernel, initrd, root file system. GET and HEAD, whole or one range.
//!
//! A stage counts as reached when the last byte of the content was sent, also by a range that resumes.

use bedplate_api::id::Digest;
use bedplate_api::reason::refusal::BootRefusal;
use bedplate_api::wire::Stage;
use bedplate_process::counter::one;
use bedplate_process::listen::socket::OnSent;
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use hyper::{Response, StatusCode};
use jiff::Timestamp;

use super::body::Payload;
use super::conditional::{self, Conditions, Part};
use super::queue::Client;
use super::route::{Peer, Routes, refuse, refuse_for};
use super::streams::PER_BOOT;
use crate::boot::record::{Image, Owner, Record};
use crate::boot::table::Boot;
use crate::boot_policy::script::{Frame, render_boot, render_hold};
use crate::boot_policy::{
    self, Action, Asker, Decision, Hold, HoldCause, Platform, Request, Subject, argument,
};
use crate::netboot::dhcp;

/// Request without its path.
pub(super) struct Asked<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) head: bool,
    pub(super) peer: &'a Peer,
    pub(super) now: Timestamp,
}

impl Asked<'_> {
    fn conditions(&self) -> Conditions<'_> {
        let text = |name: HeaderName| self.headers.get(name).and_then(|value| value.to_str().ok());
        // Ranges are for GET only: HEAD describes the whole content (RFC 9110, 14.2).
        let range = text(RANGE).filter(|_| !self.head);
        Conditions { if_none_match: text(IF_NONE_MATCH), if_range: text(IF_RANGE), range }
    }
}

/// Returns the current Machine. `Err`: it was deleted, or re-created under the same name.
pub(super) fn subject_of(
    routes: &Routes,
    record: &Record,
) -> Result<Option<Subject>, Box<Response<Payload>>> {
    match &record.opening.owner {
        Owner::Unknown { .. } => Ok(None),
        Owner::Machine { name, uid } => match routes.machines.load().by_name(name) {
            Some(known) if known.uid == *uid => {
                Ok(Some(dhcp::subject(known, routes.present.default_image().as_deref())))
            }
            Some(_) | None => Err(Box::new(refuse(
                BootRefusal::MachineGone,
                "this pxed no longer knows the Machine of this boot",
            ))),
        },
    }
}

fn decide(routes: &Routes, subject: Option<&Subject>, platform: Option<Platform>) -> Decision {
    let asker = match subject {
        Some(subject) => Asker::Machine { subject, netboot: true },
        None => Asker::Unknown,
    };
    boot_policy::decide(asker, &Request::Script(platform), routes.present.as_ref())
}

/// Returns the image of a boot that may boot now, pinned to it; otherwise the reason of the hold.
fn image_of(routes: &Routes, boot: &Boot, subject: Option<&Subject>) -> Result<Image, Hold> {
    match decide(routes, subject, boot.record().opening.platform).action {
        Action::Boot { image } => match routes.images.ready(&image) {
            // It may have been exchanged since it was decided about.
            Some(image) => match argument::problem(&image.kernel_arguments) {
                None => Ok(routes.boots.pin(boot, image)),
                Some(problem) => Err(Hold::new(
                    HoldCause::InvalidKernelArguments,
                    format!("the kernel arguments of image {}: {problem}", image.name),
                )),
            },
            None => Err(Hold::new(HoldCause::ImagePending, format!("image {image} is being fetched"))),
        },
        Action::Hold(hold) => Err(hold),
        Action::Loader { .. } | Action::Script { .. } | Action::LocalDisk | Action::Refuse(_) => {
            Err(Hold::new(HoldCause::ImageUnavailable, "this machine must not boot from here"))
        }
    }
}

/// Returns the image that a boot is pinned to. A boot without one is pinned now.
pub(super) fn pinned_image(
    routes: &Routes,
    boot: &Boot,
    record: &Record,
    subject: Option<&Subject>,
) -> Result<Image, Hold> {
    match record.image.clone() {
        Some(image) => Ok(image),
        None => image_of(routes, boot, subject),
    }
}

pub(super) fn script(routes: &Routes, boot: &Boot, asked: &Asked<'_>) -> Response<Payload> {
    let record = boot.record();
    let subject = match subject_of(routes, &record) {
        Ok(subject) => subject,
        Err(refusal) => return *refusal,
    };
    let machine = record.opening.owner.display_name();
    let server = routes.urls.http(record.opening.server);
    let frame = Frame { machine: &machine, mac: record.opening.mac, boot: record.id, server: &server };
    let text = match image_of(routes, boot, subject.as_ref()) {
        Ok(image) => {
            let own = subject.map(|subject| subject.kernel_arguments).unwrap_or_default();
            let arguments = [image.kernel_arguments, own].concat();
            if !asked.head {
                routes.boots.release(&record);
            }
            render_boot(&frame, record.opening.platform, &arguments)
        }
        Err(hold) => {
            if !asked.head {
                routes.boots.hold(boot, &hold, asked.now);
            }
            render_hold(&frame, &hold.message)
        }
    };
    let length = text.len() as u64;
    let mut response = Response::new(if asked.head {
        Payload::empty()
    } else {
        Payload::memory(text.into())
            .tell(reached(routes, &record, Stage::Script), asked.peer.completions.clone())
    });
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn reached(routes: &Routes, record: &Record, stage: Stage) -> OnSent {
    let (boots, record) = (routes.boots.clone(), record.clone());
    Box::new(move || boots.reached(&record, stage, Timestamp::now()))
}

pub(super) fn loader(routes: &Routes, boot: &Boot, file: &str, asked: &Asked<'_>) -> Response<Payload> {
    let Some(loader) = routes.loaders.load().file(file).cloned() else {
        return refuse(BootRefusal::UnknownLoader, "no loader of this name is configured");
    };
    let on_sent = reached(routes, &boot.record(), Stage::Loader);
    let content_type = if file.ends_with(".efi") { "application/efi" } else { "application/octet-stream" };
    let size = loader.bytes.len() as u64;
    let bytes = loader.bytes;
    let take = move |part: std::ops::Range<u64>| {
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        Payload::memory(bytes.slice(index(part.start)..index(part.end)))
    };
    send(asked, Representation { digest: loader.digest, size, content_type }, on_sent, take)
}

/// A part of a boot's image.
#[derive(Debug, Clone, Copy)]
pub(super) enum ImagePart {
    Kernel,
    Initrd,
    Rootfs,
}

pub(super) async fn blob(
    routes: &Routes,
    boot: &Boot,
    part: ImagePart,
    asked: &Asked<'_>,
) -> Response<Payload> {
    let record = boot.record();
    let subject = match subject_of(routes, &record) {
        Ok(subject) => subject,
        Err(refusal) => return *refusal,
    };
    let image = match pinned_image(routes, boot, &record, subject.as_ref()) {
        Ok(image) => image,
        Err(hold) => return refuse(BootRefusal::Held, &hold.message),
    };
    let (blob, stage) = match part {
        ImagePart::Kernel => (Some(image.kernel), Stage::Kernel),
        ImagePart::Initrd => (Some(image.initrd), Stage::Initrd),
        ImagePart::Rootfs => (image.rootfs, Stage::RootFs),
    };
    let Some(blob) = blob else {
        return refuse(BootRefusal::NoRootfs, "the image of this boot has no root file system");
    };
    let path = routes.images.path(&blob.digest);
    let opened = tokio::task::spawn_blocking(move || {
        let file = std::fs::File::open(&path)?;
        let size = file.metadata()?.len();
        std::io::Result::Ok((file, size))
    });
    let file = match opened.await {
        Ok(Ok((file, size))) if size == blob.size => file,
        Ok(Ok(_)) => return missing(&record, &image, "does not have the size that its manifest names"),
        Ok(Err(error)) => return missing(&record, &image, &error.to_string()),
        Err(_) => return missing(&record, &image, "could not be opened"),
    };
    let client = Client { owner: record.opening.owner.clone(), address: asked.peer.address };
    let queue = (stage == Stage::RootFs).then(|| routes.queue.clone());
    let stream = match stage == Stage::RootFs && !asked.head {
        true => match routes.streams.take(record.id) {
            Some(stream) => Some(stream),
            None => {
                one(&routes.counters.streams_refused);
                return too_many(&record);
            }
        },
        false => None,
    };
    let on_sent = reached(routes, &record, stage);
    let content_type = "application/octet-stream";
    send(asked, Representation { digest: blob.digest, size: blob.size, content_type }, on_sent, move |part| {
        Payload::file(file, part, queue.map(|queue| queue.enter(client))).counted(stream)
    })
}

fn too_many(record: &Record) -> Response<Payload> {
    tracing::debug!(boot = %record.id.public_id(), "further root image stream of a boot refused");
    let message = format!(
        "this boot already receives its root image {PER_BOOT} times; end one transfer, or retry later"
    );
    refuse_for(5, BootRefusal::TooManyStreams, &message)
}

fn missing(record: &Record, image: &Image, problem: &str) -> Response<Payload> {
    let boot = record.id.public_id();
    tracing::error!(%boot, image = %image.name, problem, "failed to read a blob of an image");
    refuse(BootRefusal::ImageUnreadable, "pxed cannot read a part of the image; see its log")
}

#[derive(Clone, Copy)]
struct Representation {
    digest: Digest,
    size: u64,
    content_type: &'static str,
}

/// Answers with the part that was asked for; `take` makes the body of a part.
fn send(
    asked: &Asked<'_>,
    of: Representation,
    on_sent: OnSent,
    take: impl FnOnce(std::ops::Range<u64>) -> Payload,
) -> Response<Payload> {
    let tag = format!("\"{}\"", of.digest);
    let (status, part) = match conditional::part(asked.conditions(), &tag, of.size) {
        Part::Whole => (StatusCode::OK, 0..of.size),
        Part::Bytes(part) => (StatusCode::PARTIAL_CONTENT, part),
        Part::NotModified => (StatusCode::NOT_MODIFIED, 0..0),
        Part::Unsatisfiable => {
            let mut response =
                refuse(BootRefusal::RangeNotSatisfiable, &format!("the file has {} bytes", of.size));
            insert(response.headers_mut(), CONTENT_RANGE, &format!("bytes */{}", of.size));
            return response;
        }
    };
    let length = part.end.saturating_sub(part.start);
    let bodiless = asked.head || status == StatusCode::NOT_MODIFIED;
    let mut body = if bodiless { Payload::empty() } else { take(part.clone()) };
    if !bodiless && part.end == of.size {
        body = body.tell(on_sent, asked.peer.completions.clone());
    }
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    insert(headers, ETAG, &tag);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(of.content_type));
    if status != StatusCode::NOT_MODIFIED {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    if status == StatusCode::PARTIAL_CONTENT {
        let last = part.end.saturating_sub(1);
        insert(headers, CONTENT_RANGE, &format!("bytes {}-{last}/{}", part.start, of.size));
    }
    response
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
