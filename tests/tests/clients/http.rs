//! Foreign HTTP clients against pxed as a process: curl, wget, busybox.
//!
//! A client's view of a boot's kernel, script and seed; no virtual machine.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use bedplate_tests::netns::Namespace;
use bedplate_tests::pxed::{self, Pxed, Setup};
use bedplate_tests::rack::Rack;
use bedplate_tests::{draw, guard};

/// Size of the kernel; odd, so that no range ends at a round number.
const SIZE: usize = 3_000_017;

/// A rack with one boot drawn.
struct Rig<'r> {
    rack: &'r Rack,
    _pxed: Pxed<'r>,
    kernel: Vec<u8>,
    boot: String,
}

impl<'r> Rig<'r> {
    fn new(rack: &'r Rack) -> Result<Self> {
        let mut setup = Setup::new(pxed::stub_image(rack.path())?);
        // The client is on pxed's own host, which has no lease.
        setup.more = "[http]\nrequire-leased-address = false\n".to_owned();
        let kernel: Vec<u8> = (0..SIZE).map(|at| u8::try_from(at % 251).unwrap_or_default()).collect();
        std::fs::write(rack.file("kernel"), &kernel)?;
        let _pxed = Pxed::start(&setup, &[pxed::manifest(1, "")], rack.network(), rack.path())?;
        let client = Namespace::new("client")?;
        let boot = draw::draw_boot(rack, &client, "client", 1)?;
        Ok(Self { rack, _pxed, kernel, boot })
    }

    fn url(&self, what: &str) -> String {
        format!("{}/{what}", self.boot)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.rack.file(name)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.rack.network().command(program);
        command.args(arguments).current_dir(self.rack.path());
        command
    }

    /// curl's answer to `what` of the boot.
    fn curl(&self, arguments: &[&str], what: &str) -> Result<Answer> {
        self.curl_url(arguments, &self.url(what))
    }

    /// curl's answer: its head in lower case, and its body.
    fn curl_url(&self, arguments: &[&str], url: &str) -> Result<Answer> {
        let fixed = ["-sS", "--max-time", "60", "-D", "head", "-o", "body"];
        for name in ["head", "body"] {
            let _ = std::fs::remove_file(self.file(name));
        }
        guard::run(&mut self.command("curl", &[&fixed, arguments, &[url]].concat()))?;
        let head = std::fs::read_to_string(self.file("head"))?.to_ascii_lowercase();
        Ok(Answer { head, body: std::fs::read(self.file("body")).unwrap_or_default() })
    }
}

struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim)
    }

    /// The status, a Content-Length that is true, and no chunks.
    fn is(&self, status: &str, length: usize) -> Result<()> {
        ensure!(self.status() == status, "not {status}: {}", self.head);
        ensure!(self.field("content-length") == Some(&length.to_string()), "not {length}: {}", self.head);
        ensure!(self.field("transfer-encoding").is_none(), "{}", self.head);
        Ok(())
    }
}

fn succeeded(output: &Output) -> Result<()> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn curl_gets_whole_files_their_heads_and_single_ranges() -> Result<()> {
    let rack = Rack::new("curl")?;
    let rig = Rig::new(&rack)?;
    let whole = rig.curl(&[], "kernel")?;
    whole.is("200", SIZE)?;
    ensure!(whole.body == rig.kernel);
    let sum = guard::run(Command::new("sha256sum").arg(rig.file("kernel")))?;
    let digest = sum.split(' ').next().context("no sum")?;
    ensure!(whole.field("etag") == Some(&format!("\"sha256:{digest}\"")), "{}", whole.head);
    ensure!(whole.field("accept-ranges") == Some("bytes"), "{}", whole.head);

    let head = rig.curl(&["-I"], "kernel")?;
    head.is("200", SIZE)?;
    ensure!(head.field("etag") == whole.field("etag"));

    for (range, from, to) in
        [("1000-1999", 1000, 2000), ("2999000-", 2_999_000, SIZE), ("-500", SIZE - 500, SIZE)]
    {
        let part = rig.curl(&["-r", range], "kernel")?;
        part.is("206", to - from)?;
        let said = part.field("content-range").map(str::to_owned);
        ensure!(said == Some(format!("bytes {from}-{}/{SIZE}", to - 1)), "{range}: {}", part.head);
        ensure!(part.body == rig.kernel[from..to], "{range}: other bytes");
    }
    let beyond = rig.curl(&["-r", "3000017-"], "kernel")?;
    ensure!(beyond.status() == "416", "{}", beyond.head);
    ensure!(beyond.field("content-range") == Some(&format!("bytes */{SIZE}")), "{}", beyond.head);

    let script = rig.curl(&[], "script.ipxe")?;
    script.is("200", script.body.len())?;
    ensure!(script.body.starts_with(b"#!ipxe"));
    rack.succeeded();
    Ok(())
}

#[test]
fn curl_with_the_file_gets_not_modified_and_with_another_the_content() -> Result<()> {
    let rack = Rack::new("etag")?;
    let rig = Rig::new(&rack)?;
    rig.curl(&["--etag-save", "tag"], "kernel")?.is("200", SIZE)?;
    let same = rig.curl(&["--etag-compare", "tag"], "kernel")?;
    ensure!(same.status() == "304" && same.body.is_empty(), "{}", same.head);
    let other = rig.curl(&["-H", "If-None-Match: \"sha256:00\""], "kernel")?;
    other.is("200", SIZE)?;
    // A part of the file, if it is still the same; otherwise the complete file.
    let tag = std::fs::read_to_string(rig.file("tag"))?;
    let part = rig.curl(&["-r", "0-9", "-H", &format!("If-Range: {}", tag.trim())], "kernel")?;
    part.is("206", 10)?;
    rig.curl(&["-r", "0-9", "-H", "If-Range: \"sha256:00\""], "kernel")?.is("200", SIZE)?;
    rack.succeeded();
    Ok(())
}

#[test]
fn curl_and_wget_resume_what_broke_off() -> Result<()> {
    let rack = Rack::new("resume")?;
    let rig = Rig::new(&rack)?;
    let url = rig.url("kernel");
    let clients: [(&str, &[&str]); 3] = [
        ("curl", &["-sS", "-C", "-", "-o", "part", &url]),
        ("wget", &["-q", "-t", "1", "-c", "-O", "part", &url]),
        ("busybox", &["wget", "-q", "-c", "-O", "part", &url]),
    ];
    for (program, arguments) in clients {
        for have in [0, 1_000_003, SIZE - 1] {
            std::fs::write(rig.file("part"), &rig.kernel[..have])?;
            succeeded(&rig.command(program, arguments).output()?).with_context(|| program.to_owned())?;
            ensure!(std::fs::read(rig.file("part"))? == rig.kernel, "{program} after {have} bytes");
        }
    }
    let rest = rig.curl(&["-C", "1000003"], "kernel")?;
    rest.is("206", SIZE - 1_000_003)?;
    rack.succeeded();
    Ok(())
}

#[test]
fn refusals_say_why_and_the_seed_is_given_once() -> Result<()> {
    let rack = Rack::new("refusals")?;
    let rig = Rig::new(&rack)?;
    let refused = |answer: Answer, status: &str, reason: &str| -> Result<()> {
        answer.is(status, answer.body.len())?;
        ensure!(answer.field("content-type") == Some("application/json"), "{}", answer.head);
        let body: serde_json::Value = serde_json::from_slice(&answer.body)?;
        ensure!(body["reason"] == reason, "{body}");
        ensure!(body["message"].as_str().is_some_and(|text| text.len() > 20), "{body}");
        Ok(())
    };
    refused(rig.curl(&[], "nothing")?, "404", "UnknownPath")?;
    refused(rig.curl(&["--path-as-is"], "loader/../kernel")?, "404", "UnknownPath")?;
    refused(rig.curl(&[], "loader/nothing.efi")?, "404", "UnknownLoader")?;
    refused(rig.curl(&[], "rootfs")?, "404", "NoRootfs")?;
    refused(rig.curl(&["-X", "DELETE"], "kernel")?, "405", "MethodNotAllowed")?;
    let (server, _) = rig.boot.rsplit_once('/').context("no boot id")?;
    let other = format!("{server}/{}/kernel", "0".repeat(32));
    refused(rig.curl_url(&[], &other)?, "404", "UnknownBoot")?;

    let head = rig.curl(&["-I"], "seed")?;
    ensure!(head.status() == "405" && head.field("allow") == Some("get"), "{}", head.head);
    let seed = rig.curl(&[], "seed")?;
    seed.is("200", seed.body.len())?;
    ensure!(seed.body.starts_with(b"070701"));
    refused(rig.curl(&[], "seed")?, "410", "SeedAlreadyIssued")?;
    rack.succeeded();
    Ok(())
}
