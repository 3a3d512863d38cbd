//! Excerpt of the end of a log for a message: bounded, without uninformative lines, with secrets hidden.
//!
//! More users can read `status` than a node's log. Known secrets are hidden everywhere. Text that looks like
//! a secret (tokens, keys, passwords) is hidden too; a false positive is acceptable.
//!
//! Pure: text in, text out. Called by `apply`, `observe` and `operation`.

use std::collections::BTreeSet;

use bedplate_bootstrap::secret_name::names_secret;
use bedplate_bootstrap::unit;

/// Replacement of hidden text.
const HIDDEN: &str = "[hidden]";
/// Maximum number of characters of one line.
const MAX_LINE_CHARS: usize = 240;
/// Minimum length of a hidden value of a Secret. Shorter values are words of any log.
const MIN_SECRET_CHARS: usize = 8;
/// Minimum length of text that counts as random.
const MIN_RANDOM_CHARS: usize = 40;
/// Length of a certificate key of kubeadm, in hexadecimal digits.
const CERTIFICATE_KEY: usize = 64;
/// Prefixes of lines without information; an entry that starts with a colon matches anywhere in the line. The lines are from systemd
/// for a service that restarts repeatedly, from the script before kubeadm, and from kubeadm below each error.
const NOISE: [&str; 8] = [
    ": Scheduled restart job",
    ": Consumed ",
    "Starting ",
    "Started ",
    "Stopping ",
    "Stopped ",
    unit::STARTED,
    "To see the stack trace of this error",
];

/// Returns a reason followed by the end of a log, at most `most` characters, without repetition. `secrets`
/// are hidden values.
pub(crate) fn with_log(reason: &str, log: &str, secrets: &[String], most: usize) -> String {
    let reason = cut(&hidden(reason, secrets), most / 2);
    let mut left = most.saturating_sub(reason.chars().count());
    let mut lines = Vec::new();
    let log = without_blocks(log);
    for line in messages(&log).iter().rev() {
        let line = cut(&hidden(line, secrets), MAX_LINE_CHARS);
        if reason.contains(&line) {
            continue;
        }
        let needed = line.chars().count() + INDENT.chars().count();
        if needed > left {
            break;
        }
        left -= needed;
        lines.push(line);
    }
    lines.iter().rev().fold(reason, |text, line| text + INDENT + line)
}

/// Returns the last informative line.
pub(crate) fn last_message(log: &str) -> Option<&str> {
    messages(log).last().copied()
}

/// Returns the lines of a log that the agent's own scripts have written.
pub(crate) fn own_lines(log: &str) -> String {
    log.lines().filter(|line| line.starts_with(OWN)).map(|line| format!("{line}\n")).collect()
}

/// Start of the lines that the agent's own scripts write.
const OWN: &str = "bedplate: ";

/// Returns a log without PEM blocks (RFC 7468), also without one whose start or end is not there.
fn without_blocks(log: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut in_block = false;
    for line in log.lines() {
        let ends = line.contains("-----END ");
        if ends && !in_block {
            // The block starts before the log does.
            lines.clear();
        }
        if line.contains("-----BEGIN ") || ends {
            in_block = !ends;
            lines.push(HIDDEN);
        } else if !in_block {
            lines.push(line);
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Indent of each line of a log: `kubectl describe` prints it unchanged.
const INDENT: &str = "\n    ";

/// Returns the informative lines, each once, in the order of their last occurrence.
fn messages(log: &str) -> Vec<&str> {
    let is_noise = |line: &str| {
        NOISE
            .iter()
            .any(|noise| if noise.starts_with(':') { line.contains(noise) } else { line.starts_with(noise) })
    };
    let lines = log.lines().map(str::trim_end).filter(|line| !line.is_empty() && !is_noise(line));
    let lines: Vec<(Option<char>, &str)> = lines.map(headless).collect();
    // A kubelet logs much at level I that does not explain a failure.
    let troubled = lines.iter().any(|(level, _)| *level != Some('I'));
    let mut seen = BTreeSet::new();
    let last = lines.iter().rev().filter(|(level, _)| !troubled || *level != Some('I'));
    let mut last: Vec<&str> = last.filter(|(_, line)| seen.insert(*line)).map(|(_, line)| *line).collect();
    last.reverse();
    last
}

/// The level of a line of Kubernetes' programs (`E1122 06:56:12.123456    1234 run.go:72] text`), and the line without time and process.
fn headless(line: &str) -> (Option<char>, &str) {
    let bytes = line.as_bytes();
    let is_header = bytes.len() > 5
        && b"IWEF".contains(&bytes[0])
        && bytes[1..5].iter().all(u8::is_ascii_digit)
        && bytes[5] == b' ';
    let level = line.chars().next().filter(|_| is_header);
    let text = line.split_once("] ").map(|(_, text)| text).filter(|_| is_header);
    (level, text.unwrap_or(line))
}

/// Returns the text with possible secrets hidden.
pub(crate) fn hidden(text: &str, secrets: &[String]) -> String {
    let mut text = text.to_owned();
    for line in secrets.iter().flat_map(|secret| secret.lines()).map(str::trim) {
        if line.len() >= MIN_SECRET_CHARS {
            text = text.replace(line, HIDDEN);
        }
    }
    let lines: Vec<String> = text.split('\n').map(hidden_line).collect();
    lines.join("\n")
}

fn hidden_line(line: &str) -> String {
    let line = without_user(line);
    let mut text = String::with_capacity(line.len());
    let (mut rest, mut name, mut between) = (line.as_str(), String::new(), String::new());
    while let Some(first) = rest.chars().next() {
        if !is_word(first) {
            between.push(first);
            text.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let mut end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        if is_value_of(&name, &between, word) {
            end = end_of_value(rest, &between);
            text.push_str(HIDDEN);
        } else if looks_secret(word) || name != "sha256" && is_certificate_key(word) {
            text.push_str(HIDDEN);
        } else {
            text.push_str(word);
        }
        name = word.to_ascii_lowercase();
        between.clear();
        rest = &rest[end..];
    }
    text
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+/_.-".contains(c)
}

/// Returns true for a word with the form of kubeadm's certificate keys. A SHA-256 has this form too.
fn is_certificate_key(word: &str) -> bool {
    word.len() == CERTIFICATE_KEY && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns true if `word` is the value of a name whose values are hidden.
fn is_value_of(name: &str, between: &str, word: &str) -> bool {
    if matches!(name, "bearer" | "basic") {
        return between == " " && word.len() >= MIN_SECRET_CHARS;
    }
    let sign = between.trim_matches(|c| " \"'\\".contains(c));
    let is_argument = name.starts_with("--") && sign.is_empty();
    if !names_secret(name) || !(is_argument || matches!(sign, "=" | ":")) {
        return false;
    }
    // "failed to get token: dial tcp" is about no value.
    let is_prose = between.ends_with(": ") && word.chars().all(|c| c.is_ascii_lowercase());
    !is_prose || name.ends_with("password") || name.ends_with("passwd")
}

/// Returns the end of a value that starts here. A quote before the value ends it.
fn end_of_value(rest: &str, between: &str) -> usize {
    let quote = between.chars().next_back().filter(|c| "\"'".contains(*c));
    let ends = |c: char| quote.map_or_else(|| c.is_whitespace() || ",\"'".contains(c), |quote| c == quote);
    rest.find(ends).unwrap_or(rest.len())
}

/// Tokens of kubeadm, JSON web tokens, and long random text: a key's lines, a certificate's.
fn looks_secret(word: &str) -> bool {
    let word = word.trim_matches('.');
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if let Some((id, secret)) = word.split_once('.')
        && (id.len(), secret.len()) == (6, 16)
        && plain(id)
        && plain(secret)
    {
        return true;
    }
    let has = |kind: fn(&u8) -> bool| word.bytes().any(|byte| kind(&byte));
    let is_path = word.starts_with('/') && word.matches('/').count() > 2;
    word.len() >= MIN_RANDOM_CHARS
        && !is_path
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_digit)
}

/// `https://user:password@host` without user and password.
fn without_user(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        text.push_str(before);
        let end = after.find(|c: char| c == '/' || c == '"' || c.is_whitespace()).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(user) => {
                text.push_str(HIDDEN);
                &after[user..]
            }
            None => after,
        };
    }
    text + rest
}

/// The first `most` characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "abcdef.0123456789abcdef";
    const JWT: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl";
    const KEY: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2";

    #[test]
    fn tokens_keys_and_passwords_are_hidden() {
        for (text, expected) in [
            (format!("token {TOKEN}."), "token [hidden]".to_owned()),
            (format!("--token={TOKEN}"), "--token=[hidden]".to_owned()),
            (format!("got {JWT}"), "got [hidden]".to_owned()),
            (KEY.to_owned(), HIDDEN.to_owned()),
            ("Authorization: Bearer s3cretvalue".to_owned(), "Authorization: Bearer [hidden]".to_owned()),
            ("password=ab!cd&e next".to_owned(), "password=[hidden] next".to_owned()),
            ("\"password\": \"two words\", x".to_owned(), "\"password\": \"[hidden]\", x".to_owned()),
            ("REGISTRY_PASSWORD: hunter".to_owned(), "REGISTRY_PASSWORD: [hidden]".to_owned()),
            ("https://me:pw@r.example/v2".to_owned(), "https://[hidden]@r.example/v2".to_owned()),
            ("client-key-data: TUlHSEFn".to_owned(), "client-key-data: [hidden]".to_owned()),
        ] {
            assert_eq!(hidden(&text, &[]), expected, "{text}");
        }
        let known = ["first line of it\nzzzz-zzzz".to_owned()];
        assert_eq!(hidden("has zzzz-zzzz and first line of it", &known), "has [hidden] and [hidden]");
    }

    #[test]
    fn useful_text_is_not_hidden() {
        let digest = format!("r.example/a@sha256:{}", "0123456789abcdef".repeat(4));
        for text in [
            digest.as_str(),
            "failed to get token: dial tcp 10.0.0.1:6443: connect: connection refused",
            "secret \"regcred\" not found",
            "open /var/lib/kubelet/pods/8f2c1b7e-0000-4000-8000-000000000001/volumes/Etc1: no such file",
            "node-1 of bedplate.dev/v1alpha1, Kind=Machine",
        ] {
            assert_eq!(hidden(text, &[]), text);
        }
    }

    #[test]
    fn d3_certificate_keys_and_pem_blocks_are_hidden() {
        let key = "e6a2eb8581237ab72a4f494f30285ec12a9694d750b9785706a83bfcbbbd2204";
        for text in [
            format!("kubeadm join 10.0.0.1:6443 --token x --certificate-key {key}"),
            format!("[upload-certs] Using certificate key: {key}"),
            key.to_owned(),
            format!("certificateKey: {}", &key[..40]),
            "+ kubeadm join --token hunter2hunter2".to_owned(),
        ] {
            let messages = hidden(&text, &[]);
            assert!(!messages.contains(&key[..40]) && !messages.contains("hunter2"), "{messages}");
        }
        let hash = format!("--discovery-token-ca-cert-hash sha256:{key}");
        assert_eq!(hidden(&hash, &[]), hash, "it is public");
        let block = "start\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----\nend\n";
        assert_eq!(
            with_log("r", block, &[], 1024),
            "r\n    [hidden]\n    end".replace("[hidden]", "start\n    [hidden]")
        );
        let rest = "MHcCAQ\n-----END EC PRIVATE KEY-----\nend\n";
        assert_eq!(with_log("r", rest, &[], 1024), "r\n    [hidden]\n    end");
        let open = "start\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n";
        assert_eq!(with_log("r", open, &[], 1024), "r\n    start\n    [hidden]");
    }

    #[test]
    fn the_last_lines_that_tell_something_are_below_the_reason_each_once() {
        let header =
            |level: char, second: u32| format!("{level}1122 06:56:{second:02}.123456    1234 run.go:72] ");
        let round = |second| {
            format!(
                "kubelet.service: Scheduled restart job, restart counter is at 4.\nStarted kubelet.service - k.\n{}all is well\n\
                 {}\"command failed\" err=\"no such flag\"\nkubelet.service: Main process exited, code=exited, status=1/FAILURE\n",
                header('I', second),
                header('E', second)
            )
        };
        let log = round(1) + &round(2);
        assert_eq!(
            with_log("the kubelet is not healthy", &log, &[], 1024),
            "the kubelet is not healthy\n    \"command failed\" err=\"no such flag\"\n    \
             kubelet.service: Main process exited, code=exited, status=1/FAILURE"
        );
        let calm = format!("{}waits for the API server\n", header('I', 1));
        assert_eq!(with_log("r", &calm, &[], 1024), "r\n    waits for the API server");
    }

    #[test]
    fn lines_of_the_reason_and_of_kubeadms_start_are_omitted() {
        let log = "bedplate: started at 2026-11-22T08:00:00Z\nno such cluster\nbedplate: started at 2026-11-22T08:00:05Z\n";
        assert_eq!(last_message(log), Some("no such cluster"));
        let reason = "kubeadm has not finished: last output: no such cluster";
        assert_eq!(with_log(reason, log, &[], 1024), reason);
        assert_eq!(with_log("kubeadm failed", log, &[], 1024), "kubeadm failed\n    no such cluster");
        assert_eq!(last_message("bedplate: started at 2026-11-22T08:00:00Z\n"), None);
    }

    #[test]
    fn reason_and_log_are_bounded_and_the_end_of_the_log_is_what_stays() {
        let log: String = (0..500).map(|number| format!("line {number} {}\n", "é".repeat(100))).collect();
        let text = with_log(&"r".repeat(5000), &log, &[], 1024);
        assert!(text.chars().count() <= 1024, "{}", text.chars().count());
        assert!(text.contains("line 499") && !text.contains("line 100"), "{text}");
        assert!(text.starts_with("rrr") && text.contains('…'));
        assert_eq!(with_log("r", "\n\n", &[], 1024), "r");
        let long = with_log("r", &"x".repeat(9000), &[], 1024);
        assert_eq!(long.chars().count(), 1 + INDENT.len() + MAX_LINE_CHARS);
    }
}
