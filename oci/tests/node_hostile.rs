//! Archives that want out of their directory, or too much: nothing of them is outside, and nothing of a refused one is left.

#![allow(clippy::unwrap_used, reason = "what cannot be made here is a failed test")]

mod fixture;
mod layers;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bedplate_oci::node::{EnsureNodeImageError, LayerStore, Limits, NodeImage};
use layers::{
    Entry, Layer, device, directory, fifo, file, hard_link, header, image, layer, of_tar, quiet, symlink,
};

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        fs::write(directory.path().join("outside/secret"), "as it was").unwrap();
        Self { directory }
    }

    fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    async fn ensure(&self, layers: &[Layer], limits: Limits) -> Result<NodeImage, EnsureNodeImageError> {
        let image = image(&self.directory.path().join("layout"), layers);
        let store = LayerStore::open(self.directory.path().join("store"), limits).unwrap();
        store.ensure(&image.source(), &quiet).await
    }

    /// Unpacks one layer and says where it lies.
    async fn taken(&self, entries: &[Entry]) -> PathBuf {
        let image = self.ensure(&[layer(entries)], layers::limits()).await.unwrap();
        self.is_unharmed();
        image.layers[0].clone()
    }

    /// Returns the reason for which a layer is refused.
    async fn refused(&self, layer: Layer, limits: Limits) -> String {
        let error = self.ensure(&[layer], limits).await.expect_err("a hostile layer");
        self.is_unharmed();
        let left: Vec<_> = fs::read_dir(self.directory.path().join("store/layers"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name != ".lock")
            .collect();
        assert!(left.is_empty(), "{left:?} is left");
        chain(&error)
    }

    fn is_unharmed(&self) {
        assert_eq!(fs::read_to_string(self.outside().join("secret")).unwrap(), "as it was");
        assert_eq!(fs::read_dir(self.outside()).unwrap().count(), 1, "something new is outside");
        assert_eq!(fs::metadata(self.outside().join("secret")).unwrap().nlink(), 1);
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[tokio::test]
async fn names_that_climb_are_refused_and_absolute_ones_stay_inside() {
    for name in ["../outside/new", "a/../../outside/new", "..", "a/.."] {
        let said = Case::new().refused(layer(&[file(name, "x")]), layers::limits()).await;
        assert!(said.contains("`..` component"), "{name}: {said}");
    }
    let case = Case::new();
    let absolute = case.outside().join("new");
    let at = case.taken(&[file(absolute.to_str().unwrap(), "x")]).await;
    assert_eq!(fs::read_to_string(at.join(absolute.strip_prefix("/").unwrap())).unwrap(), "x");
}

#[tokio::test]
async fn links_planted_before_lead_only_inside_the_layer() {
    let case = Case::new();
    let outside = case.outside();
    let outside = outside.to_str().unwrap();
    let climbing = format!("../../../../../../../../..{outside}");
    // The link leads to a directory of the layer by the same name, made so that it leads somewhere.
    let inside = outside.trim_start_matches('/');
    let at = case
        .taken(&[
            directory(inside),
            symlink("absolute", outside),
            file("absolute/one", "1"),
            symlink("climbing", &climbing),
            file("climbing/two", "2"),
            symlink("first", "second"),
            symlink("second", outside),
            file("first/three", "3"),
        ])
        .await;
    for (name, content) in [("one", "1"), ("two", "2"), ("three", "3")] {
        assert_eq!(fs::read_to_string(at.join(inside).join(name)).unwrap(), content);
    }
    // Without that directory there is nothing to write into.
    let said = Case::new();
    let to = said.outside();
    let entries = [symlink("link", to.to_str().unwrap()), file("link/new", "x")];
    let said = said.refused(layer(&entries), layers::limits()).await;
    assert!(said.contains("link"), "{said}");
}

#[tokio::test]
async fn a_directory_replaced_by_a_link_is_not_written_through() {
    let case = Case::new();
    let outside = case.outside();
    let entries = [
        directory("a"),
        file("a/before", "x"),
        symlink("a", outside.to_str().unwrap()),
        file("a/secret", "overwritten"),
    ];
    let said = case.refused(layer(&entries), layers::limits()).await;
    assert!(said.contains("dangling link") || said.contains("not a directory"), "{said}");
}

#[tokio::test]
async fn a_file_replaces_a_link_and_does_not_write_to_its_target() {
    let case = Case::new();
    let secret = case.outside().join("secret");
    let at = case.taken(&[symlink("a", secret.to_str().unwrap()), file("a", "new")]).await;
    assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "new");
    let case = Case::new();
    let at = case.taken(&[file("a", "first"), hard_link("b", "a"), file("b", "second")]).await;
    assert_eq!(
        fs::read_to_string(at.join("a")).unwrap(),
        "first",
        "another name of the file that was replaced"
    );
}

#[tokio::test]
async fn hard_links_reach_nothing_outside() {
    let case = Case::new();
    let secret = case.outside().join("secret");
    for target in ["../outside/secret", secret.to_str().unwrap(), "missing", "/etc/passwd", "", "."] {
        let said = case.refused(layer(&[hard_link("b", target)]), layers::limits()).await;
        assert!(said.contains("hard link") || said.contains("not a path"), "{target}: {said}");
    }
    // By way of a link to a directory outside, and one to a link: that gives the link another name.
    let up = case.outside();
    let entries = [symlink("d", up.to_str().unwrap()), hard_link("b", "d/secret")];
    let said = case.refused(layer(&entries), layers::limits()).await;
    assert!(said.contains("hard link"), "{said}");
    let at = case.taken(&[symlink("a", secret.to_str().unwrap()), hard_link("b", "a")]).await;
    assert_eq!(fs::read_link(at.join("b")).unwrap(), secret);
    for entries in [vec![directory("d"), hard_link("b", "d")], vec![file("a", ""), hard_link("a", "a")]] {
        Case::new().refused(layer(&entries), layers::limits()).await;
    }
}

#[tokio::test]
async fn whiteouts_of_no_name_are_refused() {
    for name in [".wh...", "a/.wh...", ".wh..", ".wh.", ".wh..wh.x", ".wh.a/b", ".wh..wh..opq/b"] {
        let said = Case::new().refused(layer(&[file(name, "")]), layers::limits()).await;
        assert!(said.contains("whiteout"), "{name}: {said}");
    }
    Case::new().refused(layer(&[directory(".wh.a")]), layers::limits()).await;
    Case::new().refused(layer(&[symlink(".wh.a", "/etc")]), layers::limits()).await;
}

#[tokio::test]
async fn only_oci_steers_overlayfs() {
    let said = Case::new().refused(layer(&[device(b'3', "a", 0, 0)]), layers::limits()).await;
    assert!(said.contains("0:0"), "{said}");
    for name in ["trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.opaque"] {
        let said = Case::new().refused(layer(&[directory("a").xattr(name, "y")]), layers::limits()).await;
        assert!(said.contains("overlayfs"), "{said}");
    }
    // A hard link must not bring a whiteout of another name about.
    Case::new().refused(layer(&[file(".wh.a", ""), hard_link("b", "a")]), layers::limits()).await;
}

#[tokio::test]
async fn devices_and_fifos_are_made_as_they_are_and_only_root_gets_at_them() {
    let case = Case::new();
    let at =
        case.taken(&[device(b'3', "null", 1, 3).mode(0o666), device(b'4', "disk", 7, 1), fifo("pipe")]).await;
    let of = |name: &str| fs::symlink_metadata(at.join(name)).unwrap();
    assert!(of("null").file_type().is_char_device() && of("null").rdev() == rustix::fs::makedev(1, 3));
    assert_eq!(of("null").mode() & 0o7777, 0o666);
    assert!(of("disk").file_type().is_block_device() && of("pipe").file_type().is_fifo());
    let store = fs::metadata(at.parent().unwrap()).unwrap();
    assert_eq!(store.permissions().mode() & 0o7777, 0o700);
}

#[tokio::test]
async fn names_beyond_the_file_system_are_refused() {
    let long = "n".repeat(256);
    let deep = "d/".repeat(2100);
    let cases = [
        (file(&long, "").bytes(), "longer than 255"),
        (file(&deep, "").bytes(), "longer than 4095"),
        (file("x", "").pax("path", b"a\0b").bytes(), "NUL"),
        (symlink("x", "y").pax("linkpath", b"a\0b").bytes(), "not a path"),
        (file("x", "").pax("path", b"../up").bytes(), "`..` component"),
        (file("", "").bytes(), "no name"),
    ];
    for (bytes, reason) in cases {
        let said = Case::new().refused(of_tar(&bytes), layers::limits()).await;
        assert!(said.contains(reason), "{reason}: {said}");
    }
}

#[tokio::test]
async fn names_of_gnu_and_pax_are_taken_up_to_their_limit() {
    let case = Case::new();
    let deep = format!("{}x", "directory-of-a-long-name/".repeat(20));
    let gnu = format!("gnu/{deep}");
    let mut bytes = file("pax", "1").pax("path", &deep).bytes();
    let named = |kind, name: &str| {
        let text = [name.as_bytes(), b"\0"].concat();
        Entry { name: b"././@LongLink".to_vec(), content: text, ..file("", "") }.kind(kind).bytes()
    };
    bytes.extend(named(b'L', &gnu));
    bytes.extend(file("cut", "2").bytes());
    bytes.extend(named(b'K', &deep));
    bytes.extend(symlink("link", "cut").bytes());
    bytes.extend([0; 1024]);
    let image = case.ensure(&[of_tar(&bytes)], layers::limits()).await.unwrap();
    let at = &image.layers[0];
    assert_eq!(fs::read_to_string(at.join(&deep)).unwrap(), "1");
    assert_eq!(fs::read_to_string(at.join(&gnu)).unwrap(), "2");
    assert_eq!(fs::read_link(at.join("link")).unwrap(), Path::new(&deep));
    let huge = named(b'L', &"x".repeat(1 << 20));
    let said = Case::new().refused(of_tar(&huge), layers::limits()).await;
    assert!(said.contains("larger than"), "{said}");
}

#[tokio::test]
async fn trees_are_not_deeper_than_what_can_be_removed() {
    // A link to the bottom of a tree makes a name below it short again.
    let deep = "d/".repeat(200);
    let entries =
        [directory(&deep), symlink("s", "").pax("linkpath", &deep), directory(&format!("s/{deep}"))];
    let said = Case::new().refused(layer(&entries), layers::limits()).await;
    assert!(said.contains("deeper than 256"), "{said}");
}

#[tokio::test]
async fn archives_that_lie_about_their_sizes_are_refused() {
    let sparse = file("x", "").kind(b'S').bytes();
    let pax_sparse = file("x", "").pax("GNU.sparse.realsize", "9223372036854775807").bytes();
    let huge_pax = header(&file("pax", "").kind(b'x'), 1 << 40).to_vec();
    let global = [file("g", "15 size=100000\n").kind(b'g').bytes(), file("x", "").bytes()].concat();
    let beyond = file("x", "").pax("size", "18446744073709551615").bytes();
    let cut = header(&file("x", ""), 1 << 40).to_vec();
    let mut summed = file("x", "").bytes();
    summed[0] = b'y';
    let many: Vec<u8> = (0..40).flat_map(|_| file("x", "9 path=a\n").kind(b'x').bytes()).collect();
    let unknown = file("x", "").kind(b'Z').bytes();
    let lone = [file("x", "").bytes(), vec![0; 512], file("y", "").bytes()].concat();
    let cases = [
        (sparse, "sparse"),
        (pax_sparse, "sparse"),
        (huge_pax, "larger than"),
        (global, "global"),
        (beyond, "exceeds"),
        (cut, "in the middle"),
        (summed, "checksum"),
        (many, "too many headers"),
        (unknown, "unknown kind"),
        (lone, "lone block"),
        (b"not a tar archive".repeat(100), "checksum"),
    ];
    for (bytes, reason) in cases {
        let said = Case::new().refused(of_tar(&bytes), layers::limits()).await;
        assert!(said.contains(reason), "{reason}: {said}");
    }
}

#[tokio::test]
async fn bombs_end_at_their_limit() {
    let many: Vec<Entry> = (0..200).map(|n| file(&format!("f{n}"), "")).collect();
    let limits = Limits { most_files: 100, ..layers::limits() };
    let said = Case::new().refused(layer(&many), limits).await;
    assert!(said.contains("more than 100 files"), "{said}");
    // 64 MiB of zeros are 64 KiB.
    let limits = Limits { largest_unpacked: 32 << 20, ..layers::limits() };
    let zeros = layer(&[file("zeros", vec![0; 64 << 20])]);
    let said = Case::new().refused(zeros, limits.clone()).await;
    assert!(said.contains("more than 33554432 bytes"), "{said}");
    // Behind the archive's end, where nothing is unpacked.
    let mut behind = layers::tar(&[file("x", "")]);
    behind.resize(64 << 20, 0);
    let said = Case::new().refused(of_tar(&behind), limits).await;
    assert!(said.contains("more than 33554432 bytes"), "{said}");
    let names: Vec<Entry> = (0..70).map(|n| file(&format!("d/{n}/.wh.{}", "n".repeat(200)), "")).collect();
    Case::new().taken(&names).await;
}

#[tokio::test]
async fn a_file_that_is_no_directory_has_nothing_below_it() {
    let said = Case::new().refused(layer(&[file("a", ""), file("a/b", "")]), layers::limits()).await;
    assert!(said.contains("not a directory"), "{said}");
    let said = Case::new().refused(layer(&[fifo("a"), file("a/b", "")]), layers::limits()).await;
    assert!(said.contains("not a directory"), "{said}");
    let said = Case::new().refused(layer(&[file("./", "")]), layers::limits()).await;
    assert!(said.contains("root"), "{said}");
}
