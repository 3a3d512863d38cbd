//! Decision about a machine that asks to boot, with its reasons. One function, [`decide`], answers DHCP, the script
//! route and `bedplate explain`, so that the explanation always matches the behavior.
//!
//! Pure: no clock, file or socket; the caller passes the Machine and the current state of this pxed.
//!
//! ```text
//!  request            Machine            what is missing        answer
//!  firmware PXE   ->  known, netboot ->  loader for platform -> Loader by TFTP    (Refuse if there is none)
//!  firmware HTTP  ->      "          ->      "               -> Loader by HTTP         "
//!  iPXE           ->      "          ->                      -> Script
//!  script         ->      "          ->  paused, image, arch -> Boot              (Hold, asked again in some seconds)
//!  no netboot                                                -> LocalDisk
//!  unknown                              discovery off        -> Refuse
//! ```

pub mod argument;
pub mod explain;
pub mod platform;
pub mod script;
pub mod subject;

use bedplate_api::reason::machine::BootedReason;
use serde::{Deserialize, Serialize};

pub use self::platform::{Platform, Transport};
pub use self::subject::{BootProtocol, Firmware, ImageName, Subject};

/// Request of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Firmware PXE asks for its loader; the codes of option 93.
    Pxe(Vec<u16>),
    /// UEFI HTTP boot asks for its loader; the codes of option 93.
    HttpBoot(Vec<u16>),
    /// iPXE asks what to do; the codes of option 93.
    Ipxe(Vec<u16>),
    /// The loader requests its script over HTTP; its platform, if its DHCP message reported one (option 93).
    Script(Option<Platform>),
    /// An operating system, or anything else that does not ask to netboot.
    NoNetboot,
}

/// State of the image that a Machine boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageState {
    /// In the cache, verified.
    Ready,
    /// The image is being fetched, with its progress for users.
    Fetching(String),
    /// The last fetch failed and is repeated, with the cause for users.
    Failed(String),
    /// The image is in the cache, but cannot be booted, with the cause for users.
    Unusable(String),
    /// The configuration does not have this name.
    Unknown,
}

/// Current resources of this pxed.
pub trait State {
    /// The file name of the loader for this platform and transport.
    fn loader(&self, platform: Platform, transport: Transport) -> Option<String>;
    /// Returns the state of the image of this name.
    fn image(&self, image: &ImageName) -> ImageState;
    /// Returns the architecture of the image of this name, in OCI's terms; `None` if it is unknown.
    fn architecture(&self, image: &ImageName) -> Option<String>;
    /// The image for unknown machines; `None` while discovery is off.
    fn discovery(&self) -> Option<ImageName>;
}

/// Source of the request.
#[derive(Debug, Clone, Copy)]
pub enum Asker<'a> {
    /// A Machine, by an interface that netboots or by one that does not.
    Machine {
        /// The Machine.
        subject: &'a Subject,
        /// True if the interface that asks is configured for netboot.
        netboot: bool,
    },
    /// Unknown client.
    Unknown,
    /// A MAC address that several Machines claim.
    Claimed,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// This loader.
    Loader {
        /// The client's platform.
        platform: Platform,
        /// Transport by which it fetches the file.
        transport: Transport,
        /// File name of the loader.
        file: String,
    },
    /// iPXE gets the URL of its script.
    Script {
        /// Platform of the client, if it reported one.
        platform: Option<Platform>,
    },
    /// Kernel, initrd and seed of this image.
    Boot {
        /// The image.
        image: ImageName,
    },
    /// The machine waits on its screen and asks again.
    Hold(Hold),
    /// No answer from the network: the firmware continues with its next device.
    LocalDisk,
    /// No answer, with a stable word for it.
    Refuse(Refusal),
}

/// Hold of a machine before its kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Cause of the hold.
    pub cause: HoldCause,
    /// Text for a user. The screen of the machine shows it.
    pub message: String,
}

impl Hold {
    /// A hold with this cause and text.
    pub fn new(cause: HoldCause, message: impl Into<String>) -> Self {
        Self { cause, message: message.into() }
    }
}

/// Cause of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldCause {
    /// The image is being fetched.
    ImagePending,
    /// The image cannot be fetched, is not configured, or is not for this machine.
    ImageUnavailable,
    /// A kernel argument of the image or of the Machine cannot be passed on.
    InvalidKernelArguments,
    /// `spec.paused` is set.
    MachinePaused,
}

impl From<HoldCause> for BootedReason {
    fn from(cause: HoldCause) -> Self {
        match cause {
            HoldCause::ImagePending => BootedReason::ImagePending,
            HoldCause::ImageUnavailable => BootedReason::ImageUnavailable,
            HoldCause::InvalidKernelArguments => BootedReason::InvalidKernelArguments,
            HoldCause::MachinePaused => BootedReason::MachinePaused,
        }
    }
}

/// Reason why a request gets no answer: a closed set, used as a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No Machine has this MAC address.
    UnknownMachine,
    /// Several Machines have the MAC address.
    DuplicateMac,
    /// An architecture that Bedplate does not know.
    UnknownArchitecture,
    /// No loader file for this platform.
    NoLoader,
    /// The Machine names another firmware.
    FirmwareMismatch,
    /// The Machine names another way to fetch the loader.
    ProtocolMismatch,
}

impl Refusal {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownMachine => "unknown-machine",
            Self::DuplicateMac => "duplicate-mac",
            Self::UnknownArchitecture => "unknown-architecture",
            Self::NoLoader => "no-loader",
            Self::FirmwareMismatch => "firmware-mismatch",
            Self::ProtocolMismatch => "protocol-mismatch",
        }
    }
}

/// An answer with its reasons, in the order in which they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub action: Action,
    /// Reasons for the decision.
    pub reasons: Vec<String>,
}

/// Collects reasons up to an answer.
struct Reasons(Vec<String>);

impl Reasons {
    fn note(&mut self, reason: impl Into<String>) {
        self.0.push(reason.into());
    }

    fn end(mut self, action: Action, reason: impl Into<String>) -> Decision {
        self.note(reason);
        Decision { action, reasons: self.0 }
    }
}

/// Decides the answer to `request` of `asker` in the current `state`.
pub fn decide(asker: Asker<'_>, request: &Request, state: &dyn State) -> Decision {
    let mut reasons = Reasons(Vec::new());
    let (subject, image) = match asker {
        Asker::Claimed => {
            return reasons.end(
                Action::Refuse(Refusal::DuplicateMac),
                "MAC address is claimed by several Machines; none is served until one claim is removed",
            );
        }
        Asker::Unknown => {
            reasons.note("no Machine has this MAC address");
            match state.discovery() {
                Some(image) => {
                    reasons.note(format!("discovery is on: unknown machines boot image {image}"));
                    (None, image)
                }
                None => {
                    return reasons
                        .end(Action::Refuse(Refusal::UnknownMachine), "discovery is off: no answer");
                }
            }
        }
        Asker::Machine { subject, netboot } => {
            reasons.note(format!("Machine {} is known", subject.name));
            if !netboot && !matches!(request, Request::Script(_)) {
                return reasons.end(Action::LocalDisk, "this interface does not netboot");
            }
            (Some(subject), subject.image.clone())
        }
    };
    match request {
        Request::NoNetboot => reasons.end(Action::LocalDisk, "the request does not ask to netboot"),
        Request::Pxe(codes) => decide_loader(reasons, subject, codes, Transport::Tftp, state),
        Request::HttpBoot(codes) => decide_loader(reasons, subject, codes, Transport::Http, state),
        Request::Ipxe(codes) => decide_ipxe(reasons, subject, codes),
        Request::Script(platform) => decide_script(reasons, subject, image, *platform, state),
    }
}

fn decide_loader(
    mut reasons: Reasons,
    subject: Option<&Subject>,
    codes: &[u16],
    transport: Transport,
    state: &dyn State,
) -> Decision {
    let Some(platform) = platform::platform(codes) else {
        return reasons.end(
            Action::Refuse(Refusal::UnknownArchitecture),
            format!("none of the architecture codes {codes:?} (option 93) has a loader"),
        );
    };
    reasons.note(format!("architecture codes {codes:?} (option 93): {platform}, asks by {transport}"));
    if let Some(subject) = subject {
        if let Err(contradiction) = check_firmware(subject, platform) {
            return reasons.end(Action::Refuse(Refusal::FirmwareMismatch), contradiction);
        }
        let wanted = match subject.boot_protocol {
            BootProtocol::Auto => None,
            BootProtocol::Tftp => Some(Transport::Tftp),
            BootProtocol::Http => Some(Transport::Http),
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != transport) {
            return reasons.end(
                Action::Refuse(Refusal::ProtocolMismatch),
                format!("spec.pxe.bootProtocol allows {wanted} only, but the firmware asks by {transport}"),
            );
        }
    }
    match state.loader(platform, transport) {
        Some(file) => {
            let reason = format!("loader for {platform} by {transport}: {file}");
            reasons.end(Action::Loader { platform, transport, file }, reason)
        }
        None => reasons.end(
            Action::Refuse(Refusal::NoLoader),
            format!(
                "this pxed has no loader for {platform} by {transport}; see [loaders] in its configuration"
            ),
        ),
    }
}

fn decide_ipxe(mut reasons: Reasons, subject: Option<&Subject>, codes: &[u16]) -> Decision {
    let platform = if codes.is_empty() { None } else { platform::platform(codes) };
    if let (Some(subject), Some(platform)) = (subject, platform) {
        reasons.note(format!("architecture codes {codes:?} (option 93): iPXE on {platform}"));
        if let Err(contradiction) = check_firmware(subject, platform) {
            return reasons.end(Action::Refuse(Refusal::FirmwareMismatch), contradiction);
        }
    }
    reasons.end(Action::Script { platform }, "iPXE is running: it gets the URL of this boot's script")
}

fn decide_script(
    mut reasons: Reasons,
    subject: Option<&Subject>,
    image: ImageName,
    platform: Option<Platform>,
    state: &dyn State,
) -> Decision {
    if let Some(subject) = subject {
        if subject.paused {
            return reasons.end(
                Action::Hold(Hold::new(
                    HoldCause::MachinePaused,
                    "the Machine is paused: set spec.paused to false",
                )),
                "spec.paused is set: the machine is held before its kernel",
            );
        }
        if let Some(problem) = argument::problem(&subject.kernel_arguments) {
            return reasons.end(
                Action::Hold(Hold::new(
                    HoldCause::InvalidKernelArguments,
                    format!("spec.pxe.kernelArguments must be corrected: {problem}"),
                )),
                "a kernel argument of the Machine cannot be passed on",
            );
        }
    }
    let (cause, pending) = match state.image(&image) {
        ImageState::Ready => {
            reasons.note(format!("image {image} is in the cache, its digests verified"));
            if let Some(pending) = check_architecture(&mut reasons, subject, &image, platform, state) {
                let reason = "the image is not for this machine: it is held before its kernel";
                return reasons.end(Action::Hold(Hold::new(HoldCause::ImageUnavailable, pending)), reason);
            }
            return reasons.end(Action::Boot { image }, "kernel, initrd and seed");
        }
        ImageState::Fetching(how_far) => {
            (HoldCause::ImagePending, format!("image {image} is being fetched ({how_far})"))
        }
        ImageState::Failed(why) => {
            (HoldCause::ImageUnavailable, format!("failed to fetch image {image}, retrying: {why}"))
        }
        ImageState::Unknown => {
            (HoldCause::ImageUnavailable, format!("image {image} is not in the configuration of this pxed"))
        }
        ImageState::Unusable(why) => {
            let hold = Hold::new(
                HoldCause::InvalidKernelArguments,
                format!("image {image} must be corrected: {why}"),
            );
            return reasons.end(Action::Hold(hold), "a kernel argument of the image cannot be passed on");
        }
    };
    reasons.end(Action::Hold(Hold::new(cause, pending)), format!("image {image} is not in the cache"))
}

/// Adds a hold if the image is for another architecture than the machine's; an unknown architecture is not compared.
fn check_architecture(
    reasons: &mut Reasons,
    subject: Option<&Subject>,
    image: &ImageName,
    platform: Option<Platform>,
    state: &dyn State,
) -> Option<String> {
    let architecture = state.architecture(image)?;
    let Some(platform) = platform else {
        reasons.note(format!("the image is for {architecture}; the architecture of the machine is unknown"));
        return None;
    };
    if platform.architectures().contains(&architecture.as_str()) {
        reasons.note(format!("the image is for {architecture}, which {platform} boots"));
        return None;
    }
    let wanted = platform.architectures().first().copied().unwrap_or_default();
    let place = if subject.is_some() { "spec.pxe.image" } else { "discovery-image" };
    Some(format!(
        "image {image} is for {architecture}, but the machine is {wanted} ({platform}); name an image for {wanted} in {place}"
    ))
}

fn check_firmware(subject: &Subject, platform: Platform) -> Result<(), String> {
    let (name, fits) = match subject.firmware {
        Firmware::Auto => return Ok(()),
        Firmware::Bios => ("BIOS", !platform.is_uefi()),
        Firmware::Uefi => ("UEFI", platform.is_uefi()),
    };
    if fits {
        return Ok(());
    }
    Err(format!("spec.pxe.firmware is {name}, but the machine boots as {platform}"))
}

#[cfg(test)]
mod tests;
