//! Files of a slot's kubelet and of its version's Secrets: the expiry of the
//! certificate, and the values that must be hidden in messages.
//!
//! Blocking calls only. Called by `node`.

use std::path::PathBuf;

use bedplate_api::configuration::FileSpec;
use bedplate_api::machine::SlotName;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use super::bind;
use super::confined_writer::Inside;
use super::store::{KeepSlotError, Slots};

/// The kubelet's certificate and key, below `/var/lib/kubelet`: a link to the latest.
const CURRENT: &str = "/pki/kubelet-client-current.pem";

impl Slots {
    /// Returns the expiry of the client certificate of a slot's kubelet; none:
    /// it has none, or one that cannot be read.
    pub(crate) fn kubelet_certificate_ends(&self, slot: SlotName) -> Option<Timestamp> {
        let kept = Inside::open(&self.places().kept(slot, "kubelet")).ok()?;
        // The link's target is a path in the slot; the file itself is in the directory of the link.
        let path = kept.link_name(CURRENT).map_or(CURRENT.to_owned(), |name| format!("/pki/{name}"));
        let pem = Zeroizing::new(kept.read(&path).ok()??);
        let der = CertificateDer::from_pem_slice(&pem).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
    }

    /// Returns true if the kubelet of a slot has, or may have, a credential:
    /// `kubelet.conf`, which the join writes.
    pub(crate) fn has_credential(&self, slot: SlotName) -> bool {
        const PATH: &str = "/etc/kubernetes/kubelet.conf";
        let upper = Inside::open(&self.places().upper(slot));
        let above = upper.and_then(|upper| upper.open_file(PATH));
        self.has_mark(slot, PATH) || !matches!(above, Ok(None))
    }

    /// Returns the contents of the slot's files that its version takes from Secrets.
    ///
    /// # Errors
    /// The content record cannot be read.
    pub fn secrets(&self, slot: SlotName) -> Result<Vec<String>, KeepSlotError> {
        let Some(filled) = self.filled(slot)? else { return Ok(Vec::new()) };
        let files = filled.template.files.iter().filter(|file| file.content_from.is_some());
        let upper = Inside::open(&self.places().upper(slot))?;
        let content = |file: &FileSpec| match bind::kept(&file.path, filled.template.kubernetes.role) {
            Some((name, path)) => Inside::open(&self.places().kept(slot, name)).ok()?.read(&path).ok()?,
            None => upper.read(&file.path).ok()?,
        };
        Ok(files.filter_map(content).map(|content| String::from_utf8_lossy(&content).into_owned()).collect())
    }

    /// The directory of a slot's own journal, for the host's journalctl; none if it is not there, or a link.
    pub fn journal(&self, slot: SlotName) -> Option<PathBuf> {
        let path = self.places().kept(slot, "log").join("journal");
        std::fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;
    use crate::slot::fill_record::Filled;
    use crate::slot::sample;

    fn slots() -> (tempfile::TempDir, Slots) {
        let (directory, slots) = sample::slots();
        slots.lay(SlotName::A, &[]).unwrap();
        (directory, slots)
    }

    #[test]
    fn kubelet_certificate_is_read_next_to_its_link_and_not_on_the_host() {
        let (_directory, slots) = slots();
        assert_eq!(slots.kubelet_certificate_ends(SlotName::A), None);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
        let pki = slots.places().kept(SlotName::A, "kubelet").join("pki");
        std::fs::create_dir(&pki).unwrap();
        std::fs::write(pki.join("kubelet-client-1.pem"), pem).unwrap();
        symlink("/var/lib/kubelet/pki/kubelet-client-1.pem", pki.join("kubelet-client-current.pem")).unwrap();
        let ends = slots.kubelet_certificate_ends(SlotName::A).unwrap();
        assert_eq!(ends.to_string(), "2020-01-01T00:00:00Z");
    }

    #[test]
    fn hostile_certificate_or_journal_neither_hangs_nor_leaves_the_slot() {
        let (directory, slots) = slots();
        let pki = slots.places().kept(SlotName::A, "kubelet").join("pki");
        std::fs::create_dir(&pki).unwrap();
        let fifo = pki.join("kubelet-client-current.pem");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(slots.kubelet_certificate_ends(SlotName::A), None);
        std::fs::remove_dir_all(&pki).unwrap();
        let outside = directory.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::new(vec![]).unwrap().self_signed(&key).unwrap().pem();
        std::fs::write(outside.join("kubelet-client-current.pem"), pem).unwrap();
        symlink(&outside, &pki).unwrap();
        assert_eq!(slots.kubelet_certificate_ends(SlotName::A), None);
        let journal = slots.places().kept(SlotName::A, "log").join("journal");
        symlink(&outside, &journal).unwrap();
        assert_eq!(slots.journal(SlotName::A), None);
        std::fs::remove_file(&journal).unwrap();
        std::fs::create_dir(&journal).unwrap();
        assert_eq!(slots.journal(SlotName::A), Some(journal));
    }

    #[test]
    fn a_kubelet_has_a_credential_where_a_worker_or_a_control_plane_keeps_it() {
        let (_directory, slots) = slots();
        assert!(!slots.has_credential(SlotName::A));
        let kept = slots.places().kept(SlotName::A, "kubernetes").join("kubelet.conf");
        std::fs::write(&kept, "x").unwrap();
        assert!(slots.has_credential(SlotName::A));
        std::fs::remove_file(kept).unwrap();
        let etc = slots.places().upper(SlotName::A).join("etc/kubernetes");
        std::fs::create_dir_all(&etc).unwrap();
        assert!(!slots.has_credential(SlotName::A));
        std::fs::write(etc.join("kubelet.conf"), "x").unwrap();
        assert!(slots.has_credential(SlotName::A));
    }

    #[test]
    fn values_of_secrets_are_known_and_those_of_the_template_are_not() {
        let (_directory, slots) = slots();
        let from = json!({"secret": {"namespace": "n", "name": "s", "key": "k"}});
        let template = json!({"image": {"reference": "r.example/node", "allowTag": true}, "kubernetes": {"version": "v1.34.4"},
            "files": [{"path": "/etc/pass", "contentFrom": from}, {"path": "/var/lib/kubelet/config.json", "contentFrom": from}, {"path": "/etc/plain", "content": "x"}]});
        let template = serde_json::from_value(template).unwrap();
        slots
            .write_filled(
                SlotName::A,
                &Filled { template, layers: 1, cri_socket: String::new(), node_name: None },
            )
            .unwrap();
        let etc = slots.places().upper(SlotName::A).join("etc");
        std::fs::create_dir(&etc).unwrap();
        std::fs::write(etc.join("pass"), "correct horse").unwrap();
        std::fs::write(etc.join("plain"), "x").unwrap();
        std::fs::write(slots.places().kept(SlotName::A, "kubelet").join("config.json"), "battery staple")
            .unwrap();
        assert_eq!(slots.secrets(SlotName::A).unwrap(), ["correct horse", "battery staple"]);
    }
}
