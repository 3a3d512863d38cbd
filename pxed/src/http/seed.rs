//! The seed: taken once, as a cpio archive. The mark that it is gone is on disk before its first byte leaves.

use std::sync::Arc;

use bedplate_api::reason::refusal::BootRefusal;
use bedplate_api::wire::{RootFs, Seed};
use bedplate_process::exit::chain;
use hyper::header::{CACHE_CONTROL, HeaderValue};
use hyper::{Response, StatusCode};
use jiff::Timestamp;

use super::body::Payload;
use super::content::{pinned_image, subject_of};
use super::counters::SeedAnswer;
use super::route::{Peer, Routes, refuse, whole};
use crate::boot::Record;
use crate::boot::issued_seeds::TakeSeedError;
use crate::boot::seed_archive::archive;
use crate::boot::table::Boot;
use crate::boot_policy::Subject;
use crate::machines::Found;

pub(super) async fn seed(
    routes: &Routes,
    boot: &Arc<Boot>,
    peer: &Peer,
    now: Timestamp,
) -> Response<Payload> {
    let (answer, response) = take(routes, boot, peer, now).await;
    routes.counters.seeds.one(answer);
    response
}

/// Returns the Machine of a boot, if it would open that boot now.
fn present(
    routes: &Routes,
    record: &Record,
) -> Result<Option<Subject>, Box<(SeedAnswer, Response<Payload>)>> {
    let subject = subject_of(routes, record).map_err(|refusal| Box::new((SeedAnswer::Gone, *refusal)))?;
    match subject.as_ref().and_then(|subject| outdated(routes, record, subject)) {
        Some(refusal) => Err(Box::new(refusal)),
        None => Ok(subject),
    }
}

/// Returns the refusal of a boot that the current Machine would not have opened.
fn outdated(routes: &Routes, record: &Record, subject: &Subject) -> Option<(SeedAnswer, Response<Payload>)> {
    let mac = record.opening.mac;
    let is_own =
        matches!(routes.machines.load().by_mac(mac), Found::One(known) if known.name == subject.name);
    if !is_own || !subject.netboot.contains(&mac) {
        let message =
            format!("Machine {} no longer netboots from {mac} alone; boot the host again", subject.name);
        return Some((SeedAnswer::Gone, refuse(BootRefusal::UnknownBoot, &message)));
    }
    if subject.paused {
        let message = format!("Machine {} is paused", subject.name);
        return Some((SeedAnswer::Held, refuse(BootRefusal::Held, &message)));
    }
    None
}

async fn take(
    routes: &Routes,
    boot: &Arc<Boot>,
    peer: &Peer,
    now: Timestamp,
) -> (SeedAnswer, Response<Payload>) {
    let record = boot.record();
    let subject = match present(routes, &record) {
        Ok(subject) => subject,
        Err(refusal) => return *refusal,
    };
    let image = match pinned_image(routes, boot, &record, subject.as_ref()) {
        Ok(image) => image,
        Err(hold) => return (SeedAnswer::Held, refuse(BootRefusal::Held, &hold.message)),
    };
    let Ok(machine) = record.opening.owner.display_name().parse() else {
        let refusal = refuse(BootRefusal::Internal, "the machine has no usable name");
        return (SeedAnswer::Failed, refusal);
    };
    let token = match routes.boots.seeds().take(boot, now).await {
        Ok(token) => token,
        Err(TakeSeedError::Taken) => {
            routes.boots.seed_asked_again(&record, peer.address, now);
            let message = "the seed of this boot was already issued; a new DHCP transaction opens a new boot";
            return (SeedAnswer::Again, refuse(BootRefusal::SeedAlreadyIssued, message));
        }
        Err(error @ (TakeSeedError::Store(_) | TakeSeedError::Random)) => {
            tracing::error!(boot = %record.id.public_id(), error = chain(&error), "failed to issue a seed");
            let message = "pxed failed to issue the seed; see its log";
            let refusal = refuse(BootRefusal::SeedUnavailable, message);
            return (SeedAnswer::Failed, refusal);
        }
    };
    routes.boots.seed_left(&record, now);
    let server = routes.urls.http(record.opening.server);
    let seed = Seed {
        machine,
        site: routes.site.clone(),
        boot_id: record.id,
        // A client that is not a Machine cannot enroll: its token is not recorded.
        token: subject.is_some().then_some(token),
        ca_pem: routes.ca_pem.to_string(),
        endpoints: vec![routes.agent_urls.https(record.opening.server)],
        rootfs: image.rootfs.map(|blob| RootFs {
            url: format!("{server}/b/{}/rootfs", record.id),
            digest: blob.digest,
            size: blob.size,
        }),
        state_disk: subject.and_then(|subject| subject.state_disk),
    };
    tracing::info!(machine = %seed.machine, boot = %record.id.public_id(), peer = %peer.address, "seed given");
    let mut response = whole(StatusCode::OK, "application/octet-stream", archive(&seed).into());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    (SeedAnswer::Given, response)
}
