//! The policy as tables: each request with its answer, each contradiction with its reason.

use super::*;

struct Here {
    loaders: Vec<(Platform, Transport, &'static str)>,
    image: ImageState,
    architecture: Option<&'static str>,
    discovery: bool,
}

impl State for Here {
    fn loader(&self, platform: Platform, transport: Transport) -> Option<String> {
        let found = self.loaders.iter().find(|(p, t, _)| (*p, *t) == (platform, transport));
        found.map(|(_, _, file)| (*file).to_owned())
    }

    fn image(&self, _: &ImageName) -> ImageState {
        self.image.clone()
    }

    fn architecture(&self, _: &ImageName) -> Option<String> {
        self.architecture.map(str::to_owned)
    }

    fn discovery(&self) -> Option<ImageName> {
        self.discovery.then(|| ImageName::Configured("discover".to_owned()))
    }
}

fn here() -> Here {
    Here {
        loaders: vec![
            (Platform::Bios, Transport::Tftp, "undionly.kpxe"),
            (Platform::UefiX64, Transport::Tftp, "snponly.efi"),
            (Platform::UefiX64, Transport::Http, "ipxe.efi"),
        ],
        image: ImageState::Ready,
        architecture: Some("amd64"),
        discovery: false,
    }
}

fn subject() -> Subject {
    Subject {
        name: "node1".parse().unwrap(),
        uid: "u1".to_owned(),
        paused: false,
        firmware: Firmware::Auto,
        boot_protocol: BootProtocol::Auto,
        image: ImageName::Configured("host".to_owned()),
        kernel_arguments: vec![],
        state_disk: None,
        netboot: vec!["52:54:00:00:00:01".parse().unwrap()],
    }
}

fn answer(subject: &Subject, request: &Request, state: &Here) -> String {
    let decision = decide(Asker::Machine { subject, netboot: true }, request, state);
    assert!(!decision.reasons.is_empty());
    explain::describe(&decision)
}

#[test]
fn each_architecture_gets_its_loader() {
    let table = [
        (Request::Pxe(vec![0]), "TFTP undionly.kpxe"),
        (Request::Pxe(vec![]), "TFTP undionly.kpxe"),
        (Request::Pxe(vec![7]), "TFTP snponly.efi"),
        (Request::Pxe(vec![9]), "TFTP snponly.efi"),
        (Request::Pxe(vec![3, 7]), "TFTP snponly.efi"),
        (Request::HttpBoot(vec![16]), "HTTP ipxe.efi"),
        (Request::HttpBoot(vec![17]), "HTTP ipxe.efi"),
        (Request::Pxe(vec![11]), "no answer (no-loader)"),
        (Request::HttpBoot(vec![19]), "no answer (no-loader)"),
        (Request::Pxe(vec![12]), "no answer (unknown-architecture)"),
        (Request::Ipxe(vec![0]), "iPXE script"),
        (Request::Ipxe(vec![]), "iPXE script"),
        (Request::Ipxe(vec![7]), "iPXE script"),
        (Request::Script(None), "boot image host"),
        (Request::NoNetboot, "none; the machine continues with its next boot device"),
    ];
    for (request, expected) in table {
        assert_eq!(answer(&subject(), &request, &here()), expected, "{request:?}");
    }
}

#[test]
fn a_contradiction_with_the_machines_firmware_is_refused_and_named() {
    let bios = Subject { firmware: Firmware::Bios, ..subject() };
    let uefi = Subject { firmware: Firmware::Uefi, ..subject() };
    assert_eq!(answer(&bios, &Request::Pxe(vec![7]), &here()), "no answer (firmware-mismatch)");
    assert_eq!(answer(&bios, &Request::Pxe(vec![0]), &here()), "TFTP undionly.kpxe");
    assert_eq!(answer(&uefi, &Request::Ipxe(vec![0]), &here()), "no answer (firmware-mismatch)");
    assert_eq!(answer(&uefi, &Request::HttpBoot(vec![16]), &here()), "HTTP ipxe.efi");
    let decision = decide(Asker::Machine { subject: &bios, netboot: true }, &Request::Pxe(vec![7]), &here());
    assert_eq!(
        decision.reasons.last().unwrap(),
        "spec.pxe.firmware is BIOS, but the machine boots as UEFI x64"
    );
}

#[test]
fn a_contradiction_with_the_machines_boot_protocol_is_refused_and_named() {
    let tftp = Subject { boot_protocol: BootProtocol::Tftp, ..subject() };
    let http = Subject { boot_protocol: BootProtocol::Http, ..subject() };
    assert_eq!(answer(&tftp, &Request::HttpBoot(vec![16]), &here()), "no answer (protocol-mismatch)");
    assert_eq!(answer(&tftp, &Request::Pxe(vec![7]), &here()), "TFTP snponly.efi");
    assert_eq!(answer(&http, &Request::Pxe(vec![7]), &here()), "no answer (protocol-mismatch)");
    assert_eq!(answer(&http, &Request::Ipxe(vec![7]), &here()), "iPXE script");
}

#[test]
fn missing_resource_holds_the_machine_with_a_reason() {
    let paused = Subject { paused: true, ..subject() };
    assert_eq!(
        answer(&paused, &Request::Script(None), &here()),
        "hold: the Machine is paused: set spec.paused to false"
    );
    let fetching = Here { image: ImageState::Fetching("12 of 61 MB".to_owned()), ..here() };
    assert_eq!(
        answer(&subject(), &Request::Script(None), &fetching),
        "hold: image host is being fetched (12 of 61 MB)"
    );
    assert_eq!(answer(&subject(), &Request::Pxe(vec![0]), &fetching), "TFTP undionly.kpxe");
    let unknown = Here { image: ImageState::Unknown, ..here() };
    assert!(
        answer(&subject(), &Request::Script(None), &unknown)
            .starts_with("hold: image host is not in the conf")
    );
    let unusable = Here { image: ImageState::Unusable("its kernel arguments: x".to_owned()), ..here() };
    assert_eq!(
        answer(&subject(), &Request::Script(None), &unusable),
        "hold: image host must be corrected: its kernel arguments: x"
    );
    let argument = Subject { kernel_arguments: vec!["${x}".to_owned()], ..subject() };
    assert!(answer(&argument, &Request::Script(None), &here()).starts_with("hold: spec.pxe.kernelArguments"));
}

#[test]
fn an_image_of_another_architecture_holds_the_machine_and_names_both() {
    let table = [
        (Some(Platform::UefiX64), Some("amd64"), None),
        (Some(Platform::Bios), Some("386"), None),
        (Some(Platform::UefiArm64), Some("arm64"), None),
        // An unknown architecture is not compared.
        (None, Some("arm64"), None),
        (Some(Platform::UefiArm64), None, None),
        (Some(Platform::UefiX64), Some("arm64"), Some("amd64 (UEFI x64)")),
        (Some(Platform::Bios), Some("arm64"), Some("amd64 (BIOS)")),
        (Some(Platform::UefiX64), Some("386"), Some("amd64 (UEFI x64)")),
        (Some(Platform::UefiArm64), Some("amd64"), Some("arm64 (UEFI arm64)")),
    ];
    for (platform, architecture, machine) in table {
        let state = Here { architecture, ..here() };
        let found = answer(&subject(), &Request::Script(platform), &state);
        let Some(machine) = machine else {
            assert_eq!(found, "boot image host", "{platform:?}, {architecture:?}");
            continue;
        };
        let (image, wanted) = (architecture.unwrap(), machine.split(' ').next().unwrap());
        assert_eq!(
            found,
            format!(
                "hold: image host is for {image}, but the machine is {machine}; name an image for {wanted} in spec.pxe.image"
            )
        );
    }
    let on = Here { discovery: true, ..here() };
    let unknown = decide(Asker::Unknown, &Request::Script(Some(Platform::UefiArm64)), &on);
    assert!(explain::describe(&unknown).ends_with("name an image for arm64 in discovery-image"));
    let subject = subject();
    let asker = Asker::Machine { subject: &subject, netboot: true };
    let explained = explain::explain("node1".to_owned(), asker, &here());
    let held: Vec<_> =
        explained.decisions.iter().filter(|d| d.decision.starts_with("hold: image host is for")).collect();
    assert_eq!(held.iter().map(|d| d.request.as_str()).collect::<Vec<_>>(), ["script, UEFI arm64"]);
}

#[test]
fn an_interface_that_does_not_netboot_is_left_to_its_disk() {
    let subject = subject();
    let decision =
        decide(Asker::Machine { subject: &subject, netboot: false }, &Request::Pxe(vec![0]), &here());
    assert_eq!(decision.action, Action::LocalDisk);
}

#[test]
fn unknown_machine_is_answered_only_while_discovery_is_on() {
    let on = Here { discovery: true, ..here() };
    for (request, answer) in [
        (Request::Pxe(vec![0]), "TFTP undionly.kpxe"),
        (Request::HttpBoot(vec![16]), "HTTP ipxe.efi"),
        (Request::Ipxe(vec![0]), "iPXE script"),
        (Request::Script(Some(Platform::Bios)), "boot image discover"),
        (Request::Script(None), "boot image discover"),
        (Request::NoNetboot, "none; the machine continues with its next boot device"),
    ] {
        assert_eq!(explain::describe(&decide(Asker::Unknown, &request, &on)), answer, "{request:?}");
        let off = decide(Asker::Unknown, &request, &here());
        assert_eq!(off.action, Action::Refuse(Refusal::UnknownMachine), "{request:?}");
    }
}

#[test]
fn a_mac_address_claimed_twice_gets_nothing() {
    let on = Here { discovery: true, ..here() };
    for request in [Request::Pxe(vec![0]), Request::Script(None), Request::NoNetboot] {
        assert_eq!(decide(Asker::Claimed, &request, &on).action, Action::Refuse(Refusal::DuplicateMac));
    }
}

#[test]
fn an_explanation_has_a_reason_for_every_kind_of_request() {
    let subject = subject();
    let explanation =
        explain::explain("node1".to_owned(), Asker::Machine { subject: &subject, netboot: true }, &here());
    assert_eq!(explanation.machine, Some(subject.name.clone()));
    assert_eq!(explanation.decisions.len(), 12);
    assert!(explanation.decisions.iter().all(|d| !d.reasons.is_empty() && !d.decision.is_empty()));
}
