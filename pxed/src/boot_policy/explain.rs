//! `bedplate explain`: what one machine would get for every kind of request that there is.
//!
//! Pure: asks [`decide`] and puts its answers into words. Called by the admin socket.

use bedplate_api::wire::{ExplainedDecision, Explanation};

use super::{Action, Asker, Decision, Platform, Request, State, decide};

/// All kinds of requests, with their names for users.
fn requests() -> [(&'static str, Request); 12] {
    [
        ("BIOS, PXE", Request::Pxe(vec![0])),
        ("UEFI x64, PXE", Request::Pxe(vec![7])),
        ("UEFI ia32, PXE", Request::Pxe(vec![6])),
        ("UEFI arm64, PXE", Request::Pxe(vec![11])),
        ("UEFI x64, HTTP boot", Request::HttpBoot(vec![16])),
        ("UEFI arm64, HTTP boot", Request::HttpBoot(vec![19])),
        ("iPXE on BIOS", Request::Ipxe(vec![0])),
        ("iPXE on UEFI x64", Request::Ipxe(vec![7])),
        ("script, BIOS", Request::Script(Some(Platform::Bios))),
        ("script, UEFI x64", Request::Script(Some(Platform::UefiX64))),
        ("script, UEFI arm64", Request::Script(Some(Platform::UefiArm64))),
        ("operating system", Request::NoNetboot),
    ]
}

/// The explanation for `subject`, a MAC address or a name as it was asked for.
pub fn explain(subject: String, asker: Asker<'_>, state: &dyn State) -> Explanation {
    let decisions = requests()
        .into_iter()
        .map(|(name, request)| {
            let decision = decide(asker, &request, state);
            ExplainedDecision {
                request: name.to_owned(),
                decision: describe(&decision),
                reasons: decision.reasons,
            }
        })
        .collect();
    let machine = match asker {
        Asker::Machine { subject, .. } => Some(subject.name.clone()),
        Asker::Unknown | Asker::Claimed => None,
    };
    Explanation { subject, machine, decisions, notes: Vec::new() }
}

/// The answer in words.
pub fn describe(decision: &Decision) -> String {
    match &decision.action {
        Action::Loader { transport, file, .. } => format!("{transport} {file}"),
        Action::Script { .. } => "iPXE script".to_owned(),
        Action::Boot { image } => format!("boot image {image}"),
        Action::Hold(hold) => format!("hold: {}", hold.message),
        Action::LocalDisk => "none; the machine continues with its next boot device".to_owned(),
        Action::Refuse(refusal) => format!("no answer ({})", refusal.as_str()),
    }
}
