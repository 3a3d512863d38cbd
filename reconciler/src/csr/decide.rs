//! Pure: decides whether the host of a Machine gets the client certificate that it requests (docs/design/rules.md, Trust 3 and 5).
//!
//! The API server has recorded the requesting user, its groups, and its client certificate. The requested names are read from the
//! request itself. All must be valid. In doubt the request is not approved.

use bedplate_api::enrollment::{AGENT_USER_PREFIX, AGENTS_GROUP, ENROLLMENT_GROUP_PREFIX, KeyId};
use bedplate_api::machine::Machine;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use x509_parser::certification_request::{X509CertificationRequest, X509CertificationRequestInfo};
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::FromDer;

use crate::foreign_node::foreign;

/// The signer of kubelets' client certificates.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";
const USAGES: [&str; 3] = ["client auth", "digital signature", "key encipherment"];

const LABEL: &str = "CERTIFICATE REQUEST";
const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

/// Decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is not an agent's for its kubelet, or it is already decided.
    NotOurs,
    /// The request is approved.
    Approve,
    /// The request is denied, permanently.
    Deny(String),
    /// No rule allows or denies the request; a user may decide.
    LeaveOpen(String),
    /// A fact is missing that will arrive, such as the Node of a kubelet that is registering.
    Wait(String),
}

/// Returns the Machine of an agent's request. None: an agent did not create the request.
pub(super) fn asks_for(request: &CertificateSigningRequest) -> Option<&str> {
    let user = request.spec.username.as_deref().filter(|_| request.spec.signer_name == SIGNER)?;
    user.strip_prefix(AGENT_USER_PREFIX)
}

/// Decides about a request. `machine`: the current Machine of [`asks_for`]. `node`: the Node of the same name.
pub(super) fn decide(
    request: &CertificateSigningRequest,
    machine: Option<&Machine>,
    node: Option<&Node>,
) -> Verdict {
    let Some(name) = asks_for(request).filter(|_| !is_decided(request)) else { return Verdict::NotOurs };
    if !request.spec.groups.iter().flatten().any(|group| group == AGENTS_GROUP) {
        return Verdict::Deny(format!("requesting user is not in group {AGENTS_GROUP}"));
    }
    let Some(machine) = machine.filter(|machine| machine.metadata.deletion_timestamp.is_none()) else {
        return Verdict::Deny(format!("Machine {name} does not exist or is being deleted"));
    };
    if let Some(why) = node.and_then(|node| foreign(machine, node)) {
        return Verdict::Deny(why);
    }
    // Before the certificate: an API server that does not report the certificate reports the groups.
    if let Some(why) = foreign_enrollment(request, machine) {
        return Verdict::Deny(why);
    }
    let Some(shown) = credential(request) else {
        let why =
            "API server does not report the client certificate of the request; Kubernetes 1.32 and newer do";
        return Verdict::LeaveOpen(why.to_owned());
    };
    if !is_enrolled(machine, shown) {
        let why = "client certificate of the request is not from the last enrollment of the Machine";
        return Verdict::Deny(why.to_owned());
    }
    let usages = request.spec.usages.as_deref().unwrap_or_default();
    if usages.is_empty() || !usages.iter().all(|usage| USAGES.contains(&usage.as_str())) {
        return Verdict::Deny(format!("requested usages are not among {}", USAGES.join(", ")));
    }
    match subject(&request.spec.request.0, name) {
        Ok(()) => Verdict::Approve,
        Err(why) => Verdict::Deny(why),
    }
}

/// Returns true if the request was approved or denied, or could not be signed.
pub(super) fn is_decided(request: &CertificateSigningRequest) -> bool {
    let status = request.status.as_ref();
    status.is_some_and(|status| status.conditions.as_ref().is_some_and(|c| !c.is_empty()))
}

/// Returns the SHA-256 of the client certificate.
fn credential(request: &CertificateSigningRequest) -> Option<&str> {
    let shown = request.spec.extra.as_ref()?.get(CREDENTIAL)?;
    let [shown] = shown.as_slice() else { return None };
    shown.strip_prefix("X509SHA256=")
}

fn is_enrolled(machine: &Machine, shown: &str) -> bool {
    let enrollment = machine.status.as_ref().and_then(|status| status.enrollment.as_ref());
    let written = enrollment.and_then(|enrollment| enrollment.certificate_fingerprint);
    written.is_some_and(|written| written.hex() == shown)
}

/// Returns the reason why the enrollment groups of a request are not those of the Machine's key. None: they are, or the client certificate
/// was issued before such groups existed.
fn foreign_enrollment(request: &CertificateSigningRequest, machine: &Machine) -> Option<String> {
    let groups = request.spec.groups.iter().flatten();
    let shown: Vec<&String> = groups.filter(|group| group.starts_with(ENROLLMENT_GROUP_PREFIX)).collect();
    let enrollment = machine.status.as_ref().and_then(|status| status.enrollment.as_ref());
    let own = enrollment.and_then(|enrollment| enrollment.key_id).map(KeyId::group);
    let is_own = match shown.as_slice() {
        [] => true,
        [only] => Some(*only) == own.as_ref(),
        _ => false,
    };
    let why = "enrollment group of the client certificate does not match the key of the Machine";
    (!is_own).then(|| why.to_owned())
}

/// Returns the only block of a PEM text. Some readers take the first block of a text with several blocks,
/// others the second. The approved request could then differ from the one that the API server signs.
fn block(pem: &[u8]) -> Option<Pem> {
    let text = std::str::from_utf8(pem).ok()?;
    let body = text.trim_end_matches(['\r', '\n']).strip_prefix(BEGIN)?.strip_suffix(END)?;
    let is_apart = (body.starts_with('\n') || body.starts_with("\r\n")) && body.ends_with('\n');
    let is_sign = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '\r' | '\n');
    let (padded, signs) = (body.trim_end(), body.trim_end().trim_end_matches('='));
    if !is_apart || !signs.chars().all(is_sign) || padded.len().saturating_sub(signs.len()) > 2 {
        return None;
    }
    let (rest, block) = parse_x509_pem(pem).ok()?;
    (rest.iter().all(u8::is_ascii_whitespace) && block.label == LABEL).then_some(block)
}

/// Checks that the subject is O=system:nodes, CN=system:node:<name>, and contains nothing else.
fn subject(pem: &[u8], name: &str) -> Result<(), String> {
    inspect(pem, |request| {
        has_subject(request, name)?;
        // Attributes are other names, usages or a password. A kubelet requests none.
        if request.iter_attributes().next().is_some() {
            return Err("request contains more than a subject and a key".to_owned());
        }
        Ok(())
    })
}

/// Calls `look` with the content of a request.
///
/// # Errors
/// The text is not exactly one request, or `look` says why it is refused.
pub(super) fn inspect<T>(
    pem: &[u8],
    look: impl FnOnce(&X509CertificationRequestInfo<'_>) -> Result<T, String>,
) -> Result<T, String> {
    let unreadable = |_| "request is not a valid PKCS #10 request".to_owned();
    let pem = block(pem).ok_or("request is not exactly one PEM block")?;
    let (rest, request) = X509CertificationRequest::from_der(&pem.contents).map_err(unreadable)?;
    if !rest.is_empty() {
        return Err("request has data after its end".to_owned());
    }
    look(&request.certification_request_info)
}

/// Checks that the subject is exactly O=system:nodes, CN=system:node:<name>.
///
/// # Errors
/// The subject is another one.
pub(super) fn has_subject(request: &X509CertificationRequestInfo<'_>, name: &str) -> Result<(), String> {
    let attributes: Vec<(String, &str)> = request
        .subject
        .iter_attributes()
        .map(|attribute| (attribute.attr_type().to_id_string(), attribute.as_str().unwrap_or_default()))
        .collect();
    let wanted = format!("system:node:{name}");
    // 2.5.4.10: organizationName; 2.5.4.3: commonName (X.520).
    let parts = |id: &str| {
        attributes.iter().filter(|(found, _)| found == id).map(|(_, text)| *text).collect::<Vec<_>>()
    };
    if attributes.len() != 2 || parts("2.5.4.10") != ["system:nodes"] || parts("2.5.4.3") != [wanted.as_str()]
    {
        return Err(format!("subject of the request is not O=system:nodes, CN={wanted}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair};
    use serde_json::{Value, json};

    use super::*;

    const SUBJECT: [(DnType, &str); 2] =
        [(DnType::OrganizationName, "system:nodes"), (DnType::CommonName, "system:node:a")];

    fn pem(subject: &[(DnType, &str)], change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (type_, text) in subject {
            params.distinguished_name.push(type_.clone(), *text);
        }
        change(&mut params);
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    fn own() -> String {
        pem(&SUBJECT, |_| {})
    }

    fn fingerprint(byte: &str) -> String {
        byte.repeat(32)
    }

    /// The ID of a certificate, as the API server reports it.
    fn id(byte: &str) -> String {
        format!("X509SHA256={}", fingerprint(byte))
    }

    fn spec(pem: &str) -> Value {
        json!({ "request": ByteString(pem.into()), "signerName": SIGNER, "username": "bedplate:machine:a",
            "groups": ["system:authenticated", AGENTS_GROUP], "usages": ["digital signature", "client auth"],
            "extra": { CREDENTIAL: [id("f1")] } })
    }

    fn machine(more: &Value) -> Machine {
        let mut object = json!({ "apiVersion": "bedplate.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "a" },
            "spec": { "provider": "manual" }, "status": { "enrollment": { "certificateFingerprint": format!("sha256:{}", fingerprint("f1")) } } });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(object).unwrap()
    }

    /// Decides about a request that would be approved, with `more` in its spec.
    fn verdict(pem: &str, more: &Value, machine: Option<&Machine>) -> Verdict {
        let mut spec = spec(pem);
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let request = json!({ "metadata": { "name": "r" }, "spec": spec });
        decide(&serde_json::from_value(request).unwrap(), machine, None)
    }

    fn is_denied(verdict: &Verdict, words: &str) -> bool {
        matches!(verdict, Verdict::Deny(why) if why.contains(words))
    }

    #[test]
    fn trust_5_a_kubelet_of_the_own_node_is_given_its_certificate() {
        let (own, machine) = (own(), machine(&json!({})));
        assert_eq!(verdict(&own, &json!({}), Some(&machine)), Verdict::Approve);
        assert_eq!(verdict(&own.replace('\n', "\r\n"), &json!({}), Some(&machine)), Verdict::Approve);
        let all = json!({ "usages": USAGES });
        assert_eq!(verdict(&own, &all, Some(&machine)), Verdict::Approve);
    }

    #[test]
    fn trust_5_who_asks_has_to_be_the_host_that_was_enrolled_last() {
        let machine = machine(&json!({}));
        let shown = |ids: Value| json!({ "extra": { CREDENTIAL: ids } });
        for (more, words) in [
            (json!({ "groups": ["system:authenticated"] }), "not in group bedplate:machines"),
            (json!({ "groups": null }), "not in group bedplate:machines"),
            (shown(json!([id("f2")])), "not from the last enrollment of the Machine"),
            (shown(json!(["X509SHA256="])), "not from the last enrollment of the Machine"),
            (json!({ "usages": ["client auth", "server auth"] }), "usages are not among"),
            (json!({ "usages": ["signing"] }), "usages are not among"),
            (json!({ "usages": [] }), "usages are not among"),
            (json!({ "usages": null }), "usages are not among"),
        ] {
            let verdict = verdict(&own(), &more, Some(&machine));
            assert!(is_denied(&verdict, words), "{more}: {verdict:?}");
        }
        // The client certificate is unknown, or there are two. A user must decide.
        for more in [
            json!({ "extra": null }),
            shown(json!([])),
            shown(json!([id("f1"), id("f1")])),
            shown(json!([format!("JTI={}", fingerprint("f1"))])),
        ] {
            let verdict = verdict(&own(), &more, Some(&machine));
            assert!(matches!(verdict, Verdict::LeaveOpen(_)), "{more}: {verdict:?}");
        }
    }

    #[test]
    fn trust_3_enrollment_group_of_another_key_is_denied() {
        let (own, other) = (KeyId::of_public_key(b"own"), KeyId::of_public_key(b"other"));
        let enrolled = |key: Option<KeyId>| {
            let mut enrollment = json!({ "certificateFingerprint": format!("sha256:{}", fingerprint("f1")) });
            if let Some(key) = key {
                enrollment["keyID"] = json!(key);
            }
            machine(&json!({ "status": { "enrollment": enrollment } }))
        };
        let groups = |groups: &[String]| {
            let all: Vec<&str> = ["system:authenticated", AGENTS_GROUP]
                .into_iter()
                .chain(groups.iter().map(String::as_str))
                .collect();
            json!({ "groups": all })
        };
        let pem = self::own();
        let machine = enrolled(Some(own));
        assert_eq!(verdict(&pem, &groups(&[own.group()]), Some(&machine)), Verdict::Approve);
        assert_eq!(verdict(&pem, &groups(&[]), Some(&machine)), Verdict::Approve, "an earlier certificate");
        let malformed = format!("{ENROLLMENT_GROUP_PREFIX}x");
        for shown in [
            vec![other.group()],
            vec![own.group(), other.group()],
            vec![own.group(), own.group()],
            vec![malformed.clone()],
            vec![own.group(), malformed],
        ] {
            let denied = verdict(&pem, &groups(&shown), Some(&machine));
            assert!(is_denied(&denied, "enrollment group"), "{shown:?}: {denied:?}");
        }
        let denied = verdict(&pem, &groups(&[own.group()]), Some(&enrolled(None)));
        assert!(is_denied(&denied, "enrollment group"), "no key is recorded: {denied:?}");
    }

    #[test]
    fn trust_5_request_needs_a_machine_with_that_certificate_and_its_node() {
        let own = own();
        assert!(is_denied(&verdict(&own, &json!({}), None), "does not exist"));
        let leaving =
            machine(&json!({ "metadata": { "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
        assert!(is_denied(&verdict(&own, &json!({}), Some(&leaving)), "is being deleted"));
        for status in [json!({}), json!({ "enrollment": {} })] {
            let stranger = machine(&json!({ "status": status }));
            assert!(is_denied(&verdict(&own, &json!({}), Some(&stranger)), "not from the last enrollment"));
        }
        let empty = machine(&json!({ "status": { "enrollment": {} } }));
        let shown = json!({ "extra": { CREDENTIAL: ["X509SHA256="] } });
        assert!(is_denied(&verdict(&own, &shown, Some(&empty)), "not from the last enrollment"));
        let request: CertificateSigningRequest =
            serde_json::from_value(json!({ "metadata": {}, "spec": spec(&own) })).unwrap();
        for (provider_id, given) in
            [("bedplate://a", true), ("", false), ("bedplate://b", false), ("other://a", false)]
        {
            let node = json!({ "metadata": { "name": "a" }, "spec": { "providerID": provider_id } });
            let node: Node = serde_json::from_value(node).unwrap();
            let verdict = decide(&request, Some(&machine(&json!({}))), Some(&node));
            assert_eq!(verdict == Verdict::Approve, given, "{provider_id}: {verdict:?}");
            assert!(given || is_denied(&verdict, "belongs to another host"), "{provider_id}: {verdict:?}");
        }
    }

    /// The attack: a user may create Machines, and names one like a control plane that kubeadm joined. Its host is enrolled correctly, and
    /// asks for the certificate of that Node.
    #[test]
    fn trust_5_a_node_that_kubeadm_made_is_not_given_to_a_machine() {
        let request: CertificateSigningRequest =
            serde_json::from_value(json!({ "metadata": {}, "spec": spec(&own()) })).unwrap();
        let socket =
            json!({ "kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd/containerd.sock" });
        let labels = json!({ "kubernetes.io/hostname": "a", "node-role.kubernetes.io/control-plane": "" });
        for spec in [json!({ "podCIDR": "10.244.0.0/24" }), json!({}), Value::Null] {
            let made = json!({ "metadata": { "name": "a", "uid": "n1", "labels": labels, "annotations": socket }, "spec": spec,
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
            let node: Node = serde_json::from_value(made).unwrap();
            let verdict = decide(&request, Some(&machine(&json!({}))), Some(&node));
            assert!(is_denied(&verdict, "has no providerID"), "{spec}: {verdict:?}");
        }
    }

    #[test]
    fn trust_5_others_requests_and_those_that_are_decided_are_left_alone() {
        let machine = machine(&json!({}));
        for more in [
            json!({ "signerName": "kubernetes.io/kube-apiserver-client" }),
            json!({ "signerName": "kubernetes.io/kubelet-serving" }),
            json!({ "username": "system:node:a" }),
            json!({ "username": null }),
        ] {
            assert_eq!(verdict(&own(), &more, Some(&machine)), Verdict::NotOurs, "{more}");
        }
        for decided in ["Approved", "Denied", "Failed"] {
            let conditions = json!([{ "type": decided, "status": "True" }]);
            let request =
                json!({ "metadata": {}, "spec": spec(&own()), "status": { "conditions": conditions } });
            let request = serde_json::from_value(request).unwrap();
            assert_eq!(decide(&request, Some(&machine), None), Verdict::NotOurs, "{decided}");
        }
    }

    #[test]
    fn trust_5_a_request_for_anything_but_the_own_node_is_denied() {
        let machine = machine(&json!({}));
        let [organization, name] = SUBJECT;
        let other = |type_: DnType, text: &'static str| (type_, text);
        for subject in [
            vec![organization.clone(), other(DnType::CommonName, "system:node:b")],
            vec![organization.clone(), other(DnType::CommonName, "system:node:a ")],
            vec![organization.clone(), other(DnType::CommonName, "system:node:A")],
            vec![other(DnType::OrganizationName, "system:masters"), name.clone()],
            vec![organization.clone()],
            vec![name.clone()],
            vec![],
            vec![organization.clone(), name.clone(), other(DnType::OrganizationalUnitName, "x")],
            vec![organization.clone(), name.clone(), other(DnType::CountryName, "DE")],
        ] {
            let verdict = verdict(&pem(&subject, |_| {}), &json!({}), Some(&machine));
            assert!(is_denied(&verdict, "subject of the request is not"), "{subject:?}: {verdict:?}");
        }
        // A second name, a second organization.
        for more in [(DnType::CommonName, "2.5.4.3"), (DnType::OrganizationName, "2.5.4.10")] {
            let id: Vec<u64> = more.1.split('.').map(|part| part.parse().unwrap()).collect();
            let subject =
                vec![organization.clone(), name.clone(), other(DnType::CustomDnType(id), "system:node:b")];
            let verdict = verdict(&pem(&subject, |_| {}), &json!({}), Some(&machine));
            assert!(is_denied(&verdict, "subject of the request is not"), "{:?}: {verdict:?}", more.0);
        }
        let named = |params: &mut CertificateParams| {
            params.subject_alt_names = vec![rcgen::SanType::DnsName("b".try_into().unwrap())];
        };
        let extended = |params: &mut CertificateParams| {
            params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0])];
        };
        for pem in [pem(&SUBJECT, named), pem(&SUBJECT, extended)] {
            let verdict = verdict(&pem, &json!({}), Some(&machine));
            assert!(is_denied(&verdict, "more than a subject and a key"), "{verdict:?}");
        }
    }

    #[test]
    fn trust_5_a_text_that_two_readers_could_read_in_two_ways_is_denied() {
        let machine = machine(&json!({}));
        let own = own();
        let victim = pem(&[SUBJECT[0].clone(), (DnType::CommonName, "system:node:b")], |_| {});
        let label = "CERTIFICATE REQUEST-----";
        let open = own.replace(&format!("END {label}"), "END X-----");
        let middle = own.find("\n").unwrap() + 5;
        for (what, pem) in [
            ("a block whose end is not its own, and another's", format!("{open}{victim}")),
            ("two", format!("{own}{victim}")),
            ("the same twice", format!("{own}{own}")),
            ("an end that is not its own", open),
            ("another label", own.replace(label, "NEW CERTIFICATE REQUEST-----")),
            ("a certificate", own.replace(label, "CERTIFICATE-----")),
            ("text before", format!("x\n{own}")),
            ("an empty line before", format!("\n{own}")),
            ("text behind", format!("{own}x\n")),
            ("a header", own.replacen('\n', "\nProc-Type: 4\n\n", 1)),
            ("no end", own[..own.find("-----END").unwrap()].to_owned()),
            ("no line", own.replace('\n', "")),
            ("padding within", format!("{}==\n{}", &own[..middle], &own[middle..])),
            ("a sign that is none", format!("{}-{}", &own[..middle], &own[middle..])),
            ("less of it", format!("{}{}", &own[..middle], &own[middle + 4..])),
            ("nothing", String::new()),
            ("no PEM", "system:node:a".to_owned()),
        ] {
            let verdict = verdict(&pem, &json!({}), Some(&machine));
            assert!(matches!(verdict, Verdict::Deny(_)), "{what}: {verdict:?}");
        }
        let request = json!({ "metadata": {}, "spec": spec("") });
        let mut request: CertificateSigningRequest = serde_json::from_value(request).unwrap();
        request.spec.request = ByteString(vec![0xff, 0xfe]);
        assert!(is_denied(&decide(&request, Some(&machine), None), "one PEM block"));
    }
}
