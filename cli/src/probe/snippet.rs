//! Pure: converts the result of a probe to `spec.bmc` of a Machine, as YAML to paste.

use bedplate_bmc::probe::{Found, IpmiProbe, Probe};

use crate::arguments::ProbeArguments;

/// Returns a piece of a manifest. `authorities`: text of --ca-file.
pub(super) fn snippet(arguments: &ProbeArguments, authorities: Option<&str>, found: &Found) -> String {
    let mut lines = vec![
        "# for its Machine; the Secret has the keys username and password, and lists the BMC's address in"
            .to_owned(),
        "# the annotation bedplate.dev/bmc-addresses: docs/guides/bmc.md, \"Addresses of a Secret\""
            .to_owned(),
        "spec:".to_owned(),
        "  bmc:".to_owned(),
        format!("    protocol: {}", if matches!(found, Found::Ipmi(_)) { "IPMI" } else { "Redfish" }),
        format!("    address: {}", quoted(&arguments.address)),
    ];
    lines.extend(
        ["    credentialsSecretRef:", "      namespace: bedplate-system", "      name: bmc-credentials"]
            .map(str::to_owned),
    );
    match found {
        Found::Redfish(probe) => lines.extend(redfish(arguments, authorities, probe)),
        Found::Ipmi(probe) => lines.extend(privilege(probe)),
    }
    lines.join("\n") + "\n"
}

/// Settings of a Redfish service, with comments. Without a setting there is no `redfish:`.
fn redfish(arguments: &ProbeArguments, authorities: Option<&str>, probe: &Probe) -> Vec<String> {
    let mut lines: Vec<String> = system(arguments, probe).into_iter().collect();
    lines.extend(tls(arguments, authorities, probe));
    if lines.iter().any(|line| !line.trim_start().starts_with('#')) {
        lines.insert(0, "    redfish:".to_owned());
    }
    lines
}

fn system(arguments: &ProbeArguments, probe: &Probe) -> Option<String> {
    let (id, others) = match (&arguments.system_id, probe.systems.as_slice()) {
        (Some(id), _) => (id, &[][..]),
        (None, [id, others @ ..]) if !others.is_empty() => (id, others),
        (None, _) => return None,
    };
    let others: Vec<String> = others.iter().map(|id| quoted(id)).collect();
    let comment = match others.join(", ") {
        none if none.is_empty() => String::new(),
        others => format!("  # or {others}: probe each with --system-id"),
    };
    Some(format!("      systemID: {}{comment}", quoted(id)))
}

fn tls(arguments: &ProbeArguments, authorities: Option<&str>, probe: &Probe) -> Vec<String> {
    let Some(pin) = probe.pin else {
        // Only plain HTTP has no certificate. pxed uses it only if configured to.
        let lines = [
            "      # plain HTTP: requires bmc.allow-insecure in pxed's configuration",
            "      tls:",
            "        mode: Insecure",
        ];
        return lines.map(str::to_owned).to_vec();
    };
    if let (Some(authorities), true) = (authorities, probe.verified) {
        let mut lines =
            vec!["      tls:".to_owned(), "        mode: CA".to_owned(), "        caBundle: |2".to_owned()];
        lines.extend(authorities.lines().map(|line| format!("          {}", crate::render::clean(line))));
        return lines;
    }
    if probe.verified && arguments.pin.is_none() {
        return vec![
            "      # verified by a certificate authority of this host: pxed's host needs the same one"
                .to_owned(),
        ];
    }
    let mut lines = Vec::new();
    if !probe.verified {
        let comment = "      # this key is not verified: compare it with the BMC's own page first";
        lines.push(comment.to_owned());
    }
    lines.extend(["      tls:", "        mode: Pin", "        pins:"].map(str::to_owned));
    lines.push(format!("        - {pin}"));
    lines
}

fn privilege(probe: &IpmiProbe) -> Option<String> {
    (probe.privilege == Some("User"))
        .then(|| "    # this account is read-only: pxed needs one with privilege Operator".to_owned())
}

/// Returns the text in double quotes for YAML, in ASCII. No character can hide or reorder what a user sees.
fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|sign| match sign {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        ' '..='~' => sign.to_string(),
        _ => format!("\\U{:08X}", u32::from(sign)),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use bedplate_api::id::Digest;
    use bedplate_api::machine::{BmcProtocol, BmcSpec, BmcTlsMode};
    use serde::Deserialize;

    use super::*;
    use crate::arguments::{BmcCommand, Command, parse};

    #[derive(Deserialize)]
    struct Manifest {
        spec: Spec,
    }

    #[derive(Deserialize)]
    struct Spec {
        bmc: BmcSpec,
    }

    fn arguments(line: &str) -> ProbeArguments {
        let line = format!("bedplate bmc probe {line}");
        match parse(line.split(' ').map(OsString::from).collect()).unwrap().command {
            Command::Bmc(BmcCommand::Probe(arguments)) => arguments,
            other => panic!("{other:?}"),
        }
    }

    fn probe(systems: &[&str], pin: Option<Digest>, verified: bool) -> Found {
        Found::Redfish(Probe {
            authenticated: true,
            identity: bedplate_bmc::Identity::default(),
            pin,
            verified,
            systems: systems.iter().map(|id| (*id).to_owned()).collect(),
            reset_types: None,
            boot_sources: None,
            sessions: true,
            consoles: Vec::new(),
            quirks: Vec::new(),
        })
    }

    fn pasted(line: &str, authorities: Option<&str>, found: &Found) -> (BmcSpec, String) {
        let text = snippet(&arguments(line), authorities, found);
        (serde_saphyr::from_str::<Manifest>(&text).unwrap().spec.bmc, text)
    }

    fn pin() -> Digest {
        Digest::from_sha256([7; 32])
    }

    #[test]
    fn the_piece_is_a_bmc_as_a_machine_has_it() {
        let (bmc, text) = pasted("10.9.0.21", None, &probe(&["1"], Some(pin()), false));
        assert_eq!(
            (bmc.protocol, bmc.address.as_str(), bmc.system_id()),
            (BmcProtocol::Redfish, "10.9.0.21", None)
        );
        let tls = bmc.tls().unwrap();
        assert_eq!((tls.mode, &tls.pins), (BmcTlsMode::Pin, &vec![pin()]));
        assert!(text.contains("is not verified"), "{text}");

        let (bmc, text) =
            pasted(&format!("bmc.example --pin {}", pin()), None, &probe(&["1"], Some(pin()), true));
        assert_eq!(bmc.tls().unwrap().pins, [pin()]);
        assert!(!text.contains("is not verified"), "{text}");
        let (bmc, _) = pasted("bmc.example", None, &probe(&["1"], Some(pin()), true));
        assert_eq!(bmc.redfish, None);

        let authority = "  of the lab\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let (bmc, _) = pasted("bmc.example --ca-file f", Some(authority), &probe(&["1"], Some(pin()), true));
        assert_eq!(bmc.tls().map(|tls| tls.mode), Some(BmcTlsMode::Ca));
        assert_eq!(bmc.tls().unwrap().ca_bundle.as_deref(), Some(authority));

        let (bmc, text) = pasted("http://10.9.0.21", None, &probe(&["1"], None, false));
        assert_eq!(bmc.tls().unwrap().mode, BmcTlsMode::Insecure);
        assert!(text.contains("plain HTTP"), "{text}");
    }

    #[test]
    fn with_several_systems_one_is_named_and_the_others_too() {
        let (bmc, text) = pasted("10.9.0.21", None, &probe(&["a\"\u{202e}b", "2"], Some(pin()), false));
        assert_eq!(bmc.system_id(), Some("a\"\u{202e}b"));
        assert!(text.contains("  # or \"2\"") && text.is_ascii(), "{text}");
        let (bmc, _) = pasted("10.9.0.21 --system-id 2", None, &probe(&["1", "2"], Some(pin()), false));
        assert_eq!(bmc.system_id(), Some("2"));
    }

    #[test]
    fn ipmi_has_neither_certificate_nor_system() {
        let found = Found::Ipmi(IpmiProbe { privilege: Some("User"), ..IpmiProbe::default() });
        let (bmc, text) = pasted("10.9.0.22:6230 --protocol ipmi", None, &found);
        assert_eq!((bmc.protocol, bmc.redfish), (BmcProtocol::Ipmi, None));
        assert!(text.contains("read-only"), "{text}");
    }
}
