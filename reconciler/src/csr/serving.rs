//! Pure: decides about the serving certificate of a kubelet (docs/design/rules.md, Trust 5; signer `kubernetes.io/kubelet-serving`).
//!
//! The requesting kubelet has root rights on its host. It writes the `status.addresses` of its Node itself, so they prove nothing. A name must be
//! that of the Machine. An address must be in the Machine's definition, or its agent must have reported it, and no other object may claim it.
//! The agent runs on the same host: a compromised host can claim a free address, but not one that the cluster knows as another's.
//!
//! The cluster's certificate authority signs these certificates. Its clients trust it for the API server, too, so the names and the addresses
//! of the API server and of Services are never approved, except those of a control plane's own API server (`holders`). A denial is final, so
//! only a certain claim denies. Claims of other hosts and users never deny, and they never outweigh the Machine's definition.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bedplate_api::machine::Machine;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use x509_parser::certification_request::X509CertificationRequestInfo;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::decide::{Verdict, has_subject, inspect, is_decided};
use crate::cache::claims::{Claim, Holder};
use crate::foreign_node::foreign;

/// Signer of kubelets' serving certificates.
const SIGNER: &str = "kubernetes.io/kubelet-serving";
const USER: &str = "system:node:";
const GROUP: &str = "system:nodes";
/// The two sets of usages that the signer permits. A kubelet with an ECDSA key asks for the first one.
const USAGES: [&[&str]; 2] =
    [&["digital signature", "server auth"], &["digital signature", "key encipherment", "server auth"]];
/// Names without a dot that the API server's own certificate has, or that mean the client's own host.
const RESERVED: [&str; 2] = ["kubernetes", "localhost"];
/// Maximum number of names and addresses in a request. A Machine's status has at most 64 addresses.
const MAX_NAMES: usize = 65;
/// DER of a P-256 public key up to its coordinates (RFC 5480, 2.1 and 2.2): kubelets make no other key.
const P256: [u8; 27] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
];
/// Length of the whole key in DER.
const P256_BYTES: usize = 91;

/// Names and addresses that a request asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// DNS names.
    pub(super) dns: Vec<String>,
    /// IP addresses. An IPv4 address that is written as IPv6 is an IPv4 address here.
    pub(super) ips: Vec<IpAddr>,
}

/// Returns the name of the Node whose kubelet asks for a serving certificate.
pub(super) fn asks_for(request: &CertificateSigningRequest) -> Option<&str> {
    let user = request.spec.username.as_deref().filter(|_| request.spec.signer_name == SIGNER)?;
    user.strip_prefix(USER)
}

/// Returns the names and addresses of a request; none if it cannot be read.
pub(super) fn names_of(request: &CertificateSigningRequest) -> Names {
    inspect(&request.spec.request.0, names).map(|(names, _)| names).unwrap_or_default()
}

/// Decides about a request. `machine` and `node` are the current ones of [`asks_for`], `holders` the other objects that have one of [`names_of`].
pub(super) fn decide(
    request: &CertificateSigningRequest,
    machine: Option<&Machine>,
    node: Option<&Node>,
    holders: &[Holder],
) -> Verdict {
    let Some(name) = asks_for(request).filter(|_| !is_decided(request)) else { return Verdict::NotOurs };
    // The Node is not Bedplate's: another approver decides about its certificate.
    let Some(machine) = machine else { return Verdict::NotOurs };
    let Some(node) = node else { return Verdict::Wait(format!("Node {name} does not exist yet")) };
    // Checked first: a Machine with the name of another host's Node must not deny the certificate of that Node.
    if let Some(why) = foreign(machine, node) {
        return Verdict::LeaveOpen(why);
    }
    if machine.metadata.deletion_timestamp.is_some() {
        return Verdict::Deny(format!("Machine {name} is being deleted"));
    }
    if !request.spec.groups.iter().flatten().any(|group| group == GROUP) {
        return Verdict::Deny(format!("requesting user is not in group {GROUP}"));
    }
    let usages: BTreeSet<&str> = request.spec.usages.iter().flatten().map(String::as_str).collect();
    if !USAGES.iter().any(|all| all.iter().copied().collect::<BTreeSet<_>>() == usages) {
        return Verdict::Deny(format!("requested usages are not exactly {}", USAGES[0].join(", ")));
    }
    match inspect(&request.spec.request.0, |info| content(info, name)) {
        Ok(names) => judge(&names, name, machine, holders),
        Err(why) => Verdict::Deny(why),
    }
}

/// Decides about the names and addresses alone.
fn judge(names: &Names, name: &str, machine: &Machine, holders: &[Holder]) -> Verdict {
    if let Some(other) = names.dns.iter().find(|asked| *asked != name) {
        return Verdict::Deny(format!("requested DNS name {other:?} is not {name}"));
    }
    if RESERVED.contains(&name) {
        return Verdict::Deny(format!(
            "{name} is a name of the API server or of every host; rename the Machine"
        ));
    }
    if let Some(address) = names.ips.iter().find(|address| is_reserved(address)) {
        return Verdict::Deny(format!("requested address {address} is not reachable from other hosts"));
    }
    if let Some(held) = holders.iter().find(|holder| holder.claim == Claim::Certain) {
        return Verdict::Deny(format!("{} belongs to {}", held.has, held.by));
    }
    let own = addresses(machine);
    if let Some(address) = names.ips.iter().find(|address| !own.contains(address)) {
        return Verdict::LeaveOpen(format!(
            "Machine {name} has not reported the address {address}; it is neither in status.addresses nor in spec.pxe.interfaces"
        ));
    }
    // A name in a request is that of the Machine by now, so the Machine's definition has it.
    let is_defined = |has: &str| parse(has).is_none_or(|address| fixed_addresses(machine).contains(&address));
    let open = holders.iter().find(|holder| match holder.claim {
        Claim::Certain | Claim::Defined => true,
        Claim::Said => !is_defined(&holder.has),
    });
    match open {
        Some(held) => Verdict::LeaveOpen(format!(
            "{} is also claimed by {}; correct the wrong object, or decide with `kubectl certificate`",
            held.has, held.by
        )),
        None => Verdict::Approve,
    }
}

/// Returns the addresses of a Machine: fixed ones, and those that its agent has reported.
pub(super) fn addresses(machine: &Machine) -> Vec<IpAddr> {
    let reported = machine.status.iter().flat_map(|status| &status.addresses);
    let reported = reported.filter_map(|reported| parse(&reported.address));
    fixed_addresses(machine).into_iter().chain(reported).collect()
}

/// Returns the addresses that the definition of a Machine gives it.
pub(super) fn fixed_addresses(machine: &Machine) -> Vec<IpAddr> {
    let interfaces = machine.spec.pxe.iter().flat_map(|pxe| &pxe.interfaces);
    let fixed = interfaces.flat_map(|interface| &interface.addresses);
    fixed.map(|fixed| fixed.addr().to_canonical()).collect()
}

/// Reads an address; an IPv4 address that is written as IPv6 is an IPv4 address.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: IpAddr| address.to_canonical())
}

/// Returns true if an address cannot be that of one host: loopback, link-local, unspecified, multicast, broadcast.
fn is_reserved(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast()
}

/// Checks subject and key, and that there is nothing else but one list of names. Returns the names.
fn content(request: &X509CertificationRequestInfo<'_>, name: &str) -> Result<Names, String> {
    has_subject(request, name)?;
    let key = request.subject_pki.raw;
    if key.len() != P256_BYTES || !key.starts_with(&P256) {
        return Err("key of the request is not an ECDSA key on P-256".to_owned());
    }
    let (names, encoded) = names(request)?;
    // Encoded again from the parsed values: another reader of the same bytes finds nothing else in them.
    let version: &[u8] = &[0x02, 0x01, 0x00];
    let parts = [version, request.subject.as_raw(), key, &attribute(&encoded)].concat();
    if der(0x30, &parts) != request.raw {
        return Err("request contains more than a subject, a key, DNS names and IP addresses".to_owned());
    }
    Ok(names)
}

/// Returns the names of the one extension that a request may have (RFC 5280, 4.2.1.6), and their list in DER.
fn names(request: &X509CertificationRequestInfo<'_>) -> Result<(Names, Vec<u8>), String> {
    let (mut found, mut encoded) = (Names::default(), Vec::new());
    for name in general_names(request)? {
        match name {
            GeneralName::DNSName(name) => {
                encoded.extend(der(0x82, name.as_bytes()));
                found.dns.push((*name).to_owned());
            }
            GeneralName::IPAddress(bytes) => {
                encoded.extend(der(0x87, bytes));
                found.ips.push(ip(bytes)?);
            }
            _ => return Err("request contains names other than DNS names and IP addresses".to_owned()),
        }
    }
    let count = found.dns.len() + found.ips.len();
    if count == 0 || count > MAX_NAMES {
        return Err(format!("request contains {count} names and addresses; 1 to {MAX_NAMES} are allowed"));
    }
    Ok((found, encoded))
}

fn general_names<'r>(request: &'r X509CertificationRequestInfo<'_>) -> Result<&'r [GeneralName<'r>], String> {
    let [attribute] = request.attributes() else {
        return Err(
            "request does not have exactly one attribute, a list of DNS names and IP addresses".to_owned()
        );
    };
    let ParsedCriAttribute::ExtensionRequest(asked) = attribute.parsed_attribute() else {
        return Err("attribute of the request is not an extension request".to_owned());
    };
    let [extension] = asked.extensions.as_slice() else {
        return Err("request contains extensions other than DNS names and IP addresses".to_owned());
    };
    let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
        return Err("request contains extensions other than DNS names and IP addresses".to_owned());
    };
    Ok(&names.general_names)
}

fn ip(bytes: &[u8]) -> Result<IpAddr, String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.map(|address| address.to_canonical()).map_err(|_| "an IP address has 4 or 16 bytes".to_owned())
}

/// Writes the attributes of a request with these names as a kubelet does: RFC 2986, 4.1; RFC 2985, 5.4.2; RFC 5280, 4.2.1.6.
fn attribute(names: &[u8]) -> Vec<u8> {
    // id-ce-subjectAltName, 2.5.29.17; pkcs-9-at-extensionRequest, 1.2.840.113549.1.9.14.
    let kind = der(0x06, &[0x55, 0x1d, 0x11]);
    let extension = der(0x30, &[kind, der(0x04, &der(0x30, names))].concat());
    let requested = der(0x06, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e]);
    let set = der(0x31, &der(0x30, &extension));
    der(0xa0, &der(0x30, &[requested, set].concat()))
}

/// Writes one DER element (X.690, 8.1.3 and 10.1); `content` has less than 64 KiB.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    let length: &[u8] = match (high, low) {
        (0, 0..=0x7f) => &[low],
        (0, _) => &[0x81, low],
        _ => &[0x82, high, low],
    };
    [&[tag][..], length, content].concat()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use rcgen::{
        CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, SanType, SignatureAlgorithm,
    };
    use serde_json::{Value, json};

    use super::*;

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn address(text: &str) -> SanType {
        SanType::IpAddress(text.parse().unwrap())
    }

    /// Returns the names that the kubelet of Node `a` asks for.
    fn own() -> Vec<SanType> {
        vec![dns("a"), address("10.7.0.21")]
    }

    fn pem(
        (organization, name): (&str, &str),
        names: Vec<SanType>,
        key: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = names;
        change(&mut params);
        params.serialize_request(&KeyPair::generate_for(key).unwrap()).unwrap().pem().unwrap()
    }

    const SUBJECT: (&str, &str) = ("system:nodes", "system:node:a");

    fn of(names: Vec<SanType>) -> String {
        pem(SUBJECT, names, &rcgen::PKCS_ECDSA_P256_SHA256, |_| {})
    }

    fn request(pem: &str, more: &Value) -> CertificateSigningRequest {
        let mut spec = json!({ "request": ByteString(pem.into()), "signerName": SIGNER, "username": "system:node:a",
            "groups": ["system:nodes", "system:authenticated"], "usages": ["digital signature", "server auth"] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({ "metadata": { "name": "r" }, "spec": spec })).unwrap()
    }

    fn machine(more: &Value) -> Machine {
        let reported = json!([{ "type": "InternalIP", "address": "10.7.0.21" }, { "type": "InternalIP", "address": "fd00::21" },
            { "type": "InternalIP", "address": "127.0.0.1" }, { "type": "InternalIP", "address": "169.254.1.1" },
            { "type": "InternalIP", "address": "fe80::1" }, { "type": "InternalIP", "address": "10.96.0.1" },
            { "type": "Hostname", "address": "a" }]);
        let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "provider": "pxe", "pxe": { "interfaces":
                [{ "macAddress": "02:00:00:00:00:01", "addresses": ["10.7.0.77/24"] }] } },
            "status": { "addresses": reported } });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    fn node(spec: &Value) -> Node {
        // The kubelet reports these addresses, so they are not evidence.
        let said =
            json!([{ "type": "InternalIP", "address": "10.7.0.66" }, { "type": "Hostname", "address": "b" }]);
        serde_json::from_value(
            json!({ "metadata": { "name": "a" }, "spec": spec, "status": { "addresses": said } }),
        )
        .unwrap()
    }

    fn ours() -> Node {
        node(&json!({ "providerID": "bedplate://a" }))
    }

    fn verdict(pem: &str, more: &Value, holders: &[Holder]) -> Verdict {
        decide(&request(pem, more), Some(&machine(&json!({}))), Some(&ours()), holders)
    }

    fn is_denied(verdict: &Verdict, words: &str) -> bool {
        matches!(verdict, Verdict::Deny(why) if why.contains(words))
    }

    fn is_left_open(verdict: &Verdict, words: &str) -> bool {
        matches!(verdict, Verdict::LeaveOpen(why) if why.contains(words))
    }

    fn held(has: &str, by: &str, claim: Claim) -> Holder {
        Holder { has: has.to_owned(), by: by.to_owned(), claim }
    }

    #[test]
    fn trust_5_serving_certificate_has_the_machines_name_and_addresses() {
        for names in [
            own(),
            vec![dns("a")],
            vec![address("10.7.0.21")],
            vec![dns("a"), address("10.7.0.21"), address("fd00::21")],
            vec![dns("a"), address("10.7.0.77")],
            vec![dns("a"), address("::ffff:10.7.0.21")],
        ] {
            assert_eq!(verdict(&of(names.clone()), &json!({}), &[]), Verdict::Approve, "{names:?}");
        }
        let all = json!({ "usages": ["server auth", "key encipherment", "digital signature"] });
        assert_eq!(verdict(&of(own()), &all, &[]), Verdict::Approve);
    }

    #[test]
    fn trust_5_serving_certificate_has_no_other_name_and_no_reserved_address() {
        for (names, words) in [
            (vec![dns("a"), dns("b")], "\"b\" is not a"),
            (vec![dns("A")], " is not a"),
            (vec![dns("a.example")], " is not a"),
            (vec![dns("*")], " is not a"),
            (vec![dns("kubernetes.default.svc"), address("10.7.0.21")], " is not a"),
            (vec![dns("a"), address("127.0.0.1")], "127.0.0.1 is not reachable"),
            (vec![dns("a"), address("::1")], "::1 is not reachable"),
            (vec![dns("a"), address("::ffff:127.0.0.1")], "127.0.0.1 is not reachable"),
            (vec![dns("a"), address("169.254.1.1")], "169.254.1.1 is not reachable"),
            (vec![dns("a"), address("fe80::1")], "fe80::1 is not reachable"),
            (vec![dns("a"), address("0.0.0.0")], "0.0.0.0 is not reachable"),
            (vec![dns("a"), address("::")], ":: is not reachable"),
            (vec![dns("a"), address("224.0.0.1")], "224.0.0.1 is not reachable"),
            (vec![dns("a"), address("255.255.255.255")], "255.255.255.255 is not reachable"),
            (vec![], "exactly one attribute"),
            (vec![SanType::Rfc822Name("a".try_into().unwrap())], "names other than"),
            (vec![dns("a"), SanType::URI("https://a".try_into().unwrap())], "names other than"),
        ] {
            let verdict = verdict(&of(names.clone()), &json!({}), &[]);
            assert!(is_denied(&verdict, words), "{names:?}: {verdict:?}");
        }
        let many = (0..=u8::MAX).map(|last| SanType::IpAddress([10, 8, 0, last].into())).collect();
        assert!(is_denied(&verdict(&of(many), &json!({}), &[]), "256 names and addresses"));
    }

    /// The attack: a compromised host writes any address into its Node, and asks for it.
    #[test]
    fn trust_5_address_that_only_the_node_has_is_left_to_a_user() {
        for names in [vec![dns("a"), address("10.7.0.66")], vec![address("10.7.0.22")]] {
            let verdict = verdict(&of(names.clone()), &json!({}), &[]);
            let words = "has not reported the address";
            assert!(
                matches!(&verdict, Verdict::LeaveOpen(why) if why.contains(words)),
                "{names:?}: {verdict:?}"
            );
        }
    }

    /// The attack: a compromised host's agent reports the address of another host, or of the API server.
    #[test]
    fn trust_5_address_of_another_object_is_not_approved() {
        let asked = of(vec![dns("a"), address("10.7.0.21"), address("10.96.0.1")]);
        let service = [
            held("10.7.0.21", "Machine b", Claim::Said),
            held("10.96.0.1", "Service default/kubernetes", Claim::Certain),
        ];
        assert!(is_denied(
            &verdict(&asked, &json!({}), &service),
            "10.96.0.1 belongs to Service default/kubernetes"
        ));
        for (by, claim) in
            [("Machine b", Claim::Defined), ("Machine b", Claim::Said), ("Node b", Claim::Said)]
        {
            let verdict = verdict(&of(own()), &json!({}), &[held("10.7.0.21", by, claim)]);
            let words = format!("10.7.0.21 is also claimed by {by};");
            assert!(is_left_open(&verdict, &words), "{verdict:?}");
        }
    }

    /// The attack: root on one host puts the names and addresses of all others into the status of its Node, or a user puts them into a Service.
    #[test]
    fn trust_5_words_of_another_node_do_not_withhold_a_fixed_address() {
        let asked = of(vec![dns("a"), address("10.7.0.77")]);
        let said = [
            held("a", "Node b", Claim::Said),
            held("10.7.0.77", "Node b", Claim::Said),
            held("10.7.0.77", "Service n/s", Claim::Said),
        ];
        assert_eq!(verdict(&asked, &json!({}), &said), Verdict::Approve);
        let defined = [held("10.7.0.77", "Machine b", Claim::Defined)];
        let both = verdict(&asked, &json!({}), &defined);
        assert!(is_left_open(&both, "10.7.0.77 is also claimed by Machine b"), "{both:?}");
        let certain = [held("10.7.0.77", "the API server", Claim::Certain)];
        assert!(is_denied(&verdict(&asked, &json!({}), &certain), "10.7.0.77 belongs to the API server"));
    }

    #[test]
    fn trust_5_serving_certificate_is_for_the_node_of_a_machine_that_stays() {
        let asked = request(&of(own()), &json!({}));
        let (machine_, node_) = (machine(&json!({})), ours());
        assert_eq!(decide(&asked, None, Some(&node_), &[]), Verdict::NotOurs);
        assert!(matches!(decide(&asked, Some(&machine_), None, &[]), Verdict::Wait(_)));
        for spec in
            [json!({}), json!({ "providerID": "aws:///i-1" }), json!({ "providerID": "bedplate://b" })]
        {
            let verdict = decide(&asked, Some(&machine_), Some(&node(&spec)), &[]);
            assert!(matches!(verdict, Verdict::LeaveOpen(_)), "{spec}: {verdict:?}");
        }
        let leaving =
            machine(&json!({ "metadata": { "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
        assert!(is_denied(&decide(&asked, Some(&leaving), Some(&node_), &[]), "is being deleted"));
        // The attack: Machines are named like other hosts' Nodes, so that these get no certificate.
        let foreign = decide(&asked, Some(&leaving), Some(&node(&json!({}))), &[]);
        assert!(matches!(foreign, Verdict::LeaveOpen(_)), "{foreign:?}");
        for more in [
            json!({ "username": "bedplate:machine:a" }),
            json!({ "username": null }),
            json!({ "signerName": "kubernetes.io/kube-apiserver-client-kubelet" }),
        ] {
            let other = request(&of(own()), &more);
            assert_eq!(decide(&other, Some(&machine_), Some(&node_), &[]), Verdict::NotOurs, "{more}");
        }
        let mut decided = asked;
        decided.status =
            serde_json::from_value(json!({ "conditions": [{ "type": "Denied", "status": "True" }] }))
                .unwrap();
        assert_eq!(decide(&decided, Some(&machine_), Some(&node_), &[]), Verdict::NotOurs);
    }

    #[test]
    fn trust_5_machine_named_like_the_api_server_gets_no_serving_certificate() {
        for name in RESERVED {
            let object = json!({ "metadata": { "name": name } });
            let named: Node =
                serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "providerID": format!("bedplate://{name}") } }))
                    .unwrap();
            let subject = format!("system:node:{name}");
            let pem =
                pem(("system:nodes", &subject), vec![dns(name)], &rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
            let asked = request(&pem, &json!({ "username": subject }));
            let verdict = decide(&asked, Some(&machine(&object)), Some(&named), &[]);
            assert!(is_denied(&verdict, "rename the Machine"), "{name}: {verdict:?}");
        }
    }

    #[test]
    fn trust_5_serving_certificate_is_nothing_else() {
        let p256 = &rcgen::PKCS_ECDSA_P256_SHA256;
        for (more, words) in [
            (json!({ "groups": ["system:authenticated"] }), "not in group system:nodes"),
            (
                json!({ "usages": ["digital signature", "server auth", "client auth"] }),
                "usages are not exactly",
            ),
            (json!({ "usages": ["server auth"] }), "usages are not exactly"),
            (json!({ "usages": ["digital signature", "client auth"] }), "usages are not exactly"),
            (json!({ "usages": null }), "usages are not exactly"),
        ] {
            let verdict = verdict(&of(own()), &more, &[]);
            assert!(is_denied(&verdict, words), "{more}: {verdict:?}");
        }
        let more = |params: &mut CertificateParams| {
            params.custom_extensions =
                vec![CustomExtension::from_oid_content(&[2, 5, 29, 19], vec![0x30, 0])];
        };
        for (pem, words) in [
            (pem(("system:masters", "system:node:a"), own(), p256, |_| {}), "subject of the request is not"),
            (pem(("system:nodes", "system:node:b"), own(), p256, |_| {}), "subject of the request is not"),
            (pem(SUBJECT, own(), &rcgen::PKCS_ECDSA_P384_SHA384, |_| {}), "not an ECDSA key on P-256"),
            (pem(SUBJECT, own(), &rcgen::PKCS_ED25519, |_| {}), "not an ECDSA key on P-256"),
            (pem(SUBJECT, own(), p256, more), "extensions other than"),
            (format!("{}{}", of(own()), of(own())), "one PEM block"),
            (String::new(), "one PEM block"),
        ] {
            let verdict = verdict(&pem, &json!({}), &[]);
            assert!(is_denied(&verdict, words), "{words}: {verdict:?}");
        }
    }

    /// Encodes one name in bytes that another reader may decode differently.
    #[test]
    fn trust_5_serving_request_in_unusual_bytes_is_denied() {
        let name = [0x82, 0x01, b'a'];
        for (what, content, critical, approved) in [
            ("as a kubelet writes it", der(0x30, &name), false, true),
            ("critical", der(0x30, &name), true, false),
            ("with a length in a longer form", [&[0x30, 0x81, 0x03][..], &name].concat(), false, false),
            ("with something behind the list", [der(0x30, &name), vec![5, 0]].concat(), false, false),
            ("with nothing in the list", der(0x30, &[]), false, false),
            ("with an address of three bytes", der(0x30, &[0x87, 0x03, 10, 7, 0]), false, false),
        ] {
            let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 17], content);
            extension.set_criticality(critical);
            let asked = pem(SUBJECT, Vec::new(), &rcgen::PKCS_ECDSA_P256_SHA256, |params| {
                params.custom_extensions = vec![extension];
            });
            let verdict = verdict(&asked, &json!({}), &[]);
            assert_eq!(verdict == Verdict::Approve, approved, "{what}: {verdict:?}");
            assert!(approved || matches!(verdict, Verdict::Deny(_)), "{what}: {verdict:?}");
        }
    }
}
