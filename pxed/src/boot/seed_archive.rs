//! The seed as an initrd: a cpio archive (newc) that holds `/bedplate` and `/bedplate/seed.json`, mode 0600.
//!
//! Pure: bytes out. The format is that of the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
//! Padded to 512 bytes, so that whatever a loader or the kernel's EFI stub puts behind it starts aligned.

use bedplate_api::wire::Seed;

/// The archive.
pub(crate) fn archive(seed: &Seed) -> Vec<u8> {
    // A seed is plain data with text keys: it always has a JSON form.
    let json = serde_json::to_vec(seed).unwrap_or_default();
    let mut archive = Vec::with_capacity(json.len() + 1024);
    entry(&mut archive, 1, 0o040_700, 2, "bedplate", &[]);
    entry(&mut archive, 2, 0o100_600, 1, "bedplate/seed.json", &json);
    entry(&mut archive, 0, 0, 1, "TRAILER!!!", &[]);
    archive.resize(archive.len().next_multiple_of(512), 0);
    archive
}

fn entry(archive: &mut Vec<u8>, inode: u32, mode: u32, links: u32, name: &str, data: &[u8]) {
    // magic, then 13 fields of eight hex digits: ino, mode, uid, gid, nlink, mtime, filesize, device and rdevice
    // numbers, namesize with its NUL, check.
    archive.extend_from_slice(b"070701");
    for field in
        [inode as usize, mode as usize, 0, 0, links as usize, 0, data.len(), 0, 0, 0, 0, name.len() + 1, 0]
    {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend_from_slice(data);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use bedplate_api::wire::SecretText;

    use super::*;

    fn seed() -> Seed {
        Seed {
            machine: "node1".parse().unwrap(),
            site: "default".parse().unwrap(),
            boot_id: "000102030405060708090a0b0c0d0e0f".parse().unwrap(),
            token: Some(SecretText("t".repeat(43))),
            ca_pem: "-----BEGIN CERTIFICATE-----\n".to_owned(),
            endpoints: vec!["https://10.7.0.2:8443".to_owned()],
            rootfs: None,
            state_disk: None,
        }
    }

    #[test]
    fn archive_is_padded_and_ends_with_its_trailer() {
        let archive = archive(&seed());
        assert_eq!(archive.len() % 512, 0);
        assert!(archive.starts_with(b"070701"));
        assert!(archive.windows(10).any(|w| w == b"TRAILER!!!"));
    }

    #[test]
    fn cpio_of_the_system_reads_it_with_its_modes() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("seed.img"), archive(&seed())).unwrap();
        let archive = std::fs::File::open(directory.path().join("seed.img")).unwrap();
        let cpio = |arguments: &[&str]| {
            let mut command = std::process::Command::new("cpio");
            command.args(arguments).current_dir(directory.path()).stdin(archive.try_clone().unwrap());
            let output = command.output().expect("cpio is installed; if not: cargo xtask setup");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::io::Seek::rewind(&mut archive.try_clone().unwrap()).unwrap();
            output
        };
        let listing = cpio(&["-itv", "--quiet"]);
        let text = String::from_utf8_lossy(&listing.stdout).into_owned();
        assert!(text.contains("drwx------") && text.contains("-rw-------"), "{text}");
        assert!(text.contains("bedplate/seed.json"), "{text}");
        cpio(&["-id", "--quiet"]);
        let unpacked = std::fs::read(directory.path().join("bedplate/seed.json")).unwrap();
        assert_eq!(unpacked, serde_json::to_vec(&seed()).unwrap());
    }
}
