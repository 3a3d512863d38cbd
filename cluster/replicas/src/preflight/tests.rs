//! Table tests of the preflight checks, named after the rules.

use super::*;

fn control_plane(version: &str, status: &str) -> ControlPlaneView {
    if version.is_empty() {
        return ControlPlaneView::Unversioned;
    }
    let status_version = (!status.is_empty()).then(|| status.to_owned());
    ControlPlaneView::Versioned { version: version.to_owned(), status_version }
}

fn failed(set: &str, is_kubeadm: bool, view: &ControlPlaneView, skipped: &str) -> Vec<Option<Check>> {
    let version = (!set.is_empty()).then(|| set.to_owned());
    let failed = preflight(&SetVersion { version, is_kubeadm }, view, &Skipped::parse(skipped));
    failed.iter().map(Preflight::check).collect()
}

#[test]
fn ms5_skew_table() {
    let skew = Some(Check::KubernetesVersionSkew);
    let kubeadm = Some(Check::KubeadmVersionSkew);
    let cases = [
        ("v1.34.0", "v1.34.4", vec![]),
        ("v1.35.0", "v1.34.4", vec![skew, kubeadm]),
        ("v1.33.9", "v1.34.4", vec![kubeadm]),
        ("v1.31.0", "v1.34.4", vec![kubeadm]),
        ("v1.30.9", "v1.34.4", vec![skew, kubeadm]),
        ("v1.0.0", "v1.2.0", vec![kubeadm]),
        ("v2.0.0", "v1.34.0", vec![skew, kubeadm]),
        ("v1.34.0", "v2.0.0", vec![skew, kubeadm]),
        ("1.34", "v1.34.4+k3s1", vec![]),
        ("", "v1.34.4", vec![]),
        ("latest", "v1.34.4", vec![None]),
        ("v1.34.0", "latest", vec![None]),
        ("v1.34.0", "", vec![]),
    ];
    for (set, version, expected) in cases {
        let view = control_plane(version, version);
        assert_eq!(failed(set, true, &view, ""), expected, "{set} at {version}");
        let without_kubeadm: Vec<_> = expected.into_iter().filter(|check| *check != kubeadm).collect();
        assert_eq!(failed(set, false, &view, ""), without_kubeadm, "{set} at {version}");
    }
}

#[test]
fn ms5_unstable_control_plane_holds_creation() {
    let cases = [
        ("v1.34.1", "", true),
        ("v1.34.1", "v1.34.1", false),
        ("v1.34.1", "v1.34.0", true),
        ("v1.34.0", "v1.34.1", false),
        ("v1.34.1", "v1.34.1-rc.1", true),
        ("v1.34.1-rc.10", "v1.34.1-rc.9", true),
        ("v1.34.1-rc.1", "v1.34.1", false),
        ("v1.34.1+build.2", "v1.34.1+build.1", true),
        ("v1.34.1+build.1", "v1.34.1", true),
        ("v1.34.1", "v1.34.1+build.1", false),
    ];
    for (version, status, is_unstable) in cases {
        let found = failed("v1.34.0", true, &control_plane(version, status), "");
        let expected = if is_unstable { vec![Some(Check::ControlPlaneIsStable)] } else { vec![] };
        assert_eq!(found, expected, "{version} from {status}");
    }
    assert_eq!(failed("v1.34.0", true, &control_plane("v1.34.1", "latest"), ""), [None]);
}

/// The version could be any, so neither its state nor a skew is known.
#[test]
fn ms5_control_plane_that_cannot_be_read_fails_unless_all_is_skipped() {
    let view = ControlPlaneView::Unknown("objects of kind K are not read yet".to_owned());
    for skipped in
        ["", "ControlPlaneIsStable", "ControlPlaneIsStable,KubernetesVersionSkew,KubeadmVersionSkew"]
    {
        for version in ["", "v1.34.0", "v0.0.1"] {
            assert_eq!(failed(version, true, &view, skipped), [None], "{version} {skipped}");
        }
    }
    assert_eq!(failed("v1.34.0", true, &view, "All"), []);
    let set = SetVersion { version: None, is_kubeadm: true };
    let text = preflight(&set, &view, &Skipped::default())[0].to_string();
    assert_eq!(text, "the version of the control plane is not known: objects of kind K are not read yet");
}

#[test]
fn ms5_skipped_checks_do_not_run() {
    let view = control_plane("v1.34.0", "");
    let cases = [
        ("All", 0),
        (" KubeadmVersionSkew , KubernetesVersionSkew", 1),
        ("ControlPlaneIsStable", 2),
        ("ControlPlaneVersionSkew", 3),
        ("all,,other", 3),
    ];
    for (skipped, expected) in cases {
        assert_eq!(failed("v1.35.0", true, &view, skipped).len(), expected, "{skipped}");
    }
    assert_eq!(Skipped::parse("all,,other").unknown, ["all", "other"]);
    assert_eq!(failed("latest", true, &control_plane("latest", ""), "All"), []);
}

#[test]
fn ms5_text_names_the_check() {
    let versions = SkewedVersions { template: "v1.35.0".to_owned(), control_plane: "v1.34.0".to_owned() };
    let text = Preflight::Newer(versions).to_string();
    let expected =
        "version v1.35.0 is newer than the control plane (v1.34.0) (preflight check KubernetesVersionSkew)";
    assert_eq!(text, expected);
}

#[test]
fn ms5_text_that_is_no_version_is_refused() {
    for text in
        ["", "v", "1.", "1..2", "1.2.3.4", "a.b.c", "1.2.3-", "1.2.3+", "1.2.3-a..b", "+1.2.3", "1.2.x"]
    {
        assert_eq!(Version::parse(text), None, "{text}");
    }
    assert_eq!(Version::parse("99999999999999999999.0.0"), None);
}
