//! `cargo xtask pictures`: draws the transcripts of the demo as SVG pictures of a terminal.
//!
//! `cargo xtask demo --record` stores the transcripts. A picture depends on its transcript alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::host;

/// Minimum number of columns of a picture, so that short transcripts have the same text size.
const MIN_COLUMNS: usize = 100;
/// Width of a character in hundredths of a pixel, at the font size of the pictures.
const CHAR_WIDTH: usize = 843;
/// Distance of two lines in pixels.
const LINE_HEIGHT: usize = 20;
/// Distance between the text and the window in pixels.
const TEXT_MARGIN: usize = 20;
/// Height of the title bar in pixels.
const BAR_HEIGHT: usize = 36;
/// Style sheet of a picture.
const STYLE: &str = "text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; \
                     fill: #cdd6f4; white-space: pre } \
                     .prompt { fill: #a6e3a1 } .command { fill: #ffffff; font-weight: bold } \
                     .comment { fill: #9399b2; font-weight: normal } .head { fill: #89b4fa }";

/// Returns the folder of the transcripts and pictures.
pub(crate) fn folder() -> PathBuf {
    host::root().join("docs/getting-started/demo")
}

/// Draws all transcripts, and removes pictures whose transcript was removed.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn run() -> Result<()> {
    let folder = folder();
    let transcripts = read(&folder, "txt")?;
    for name in read(&folder, "svg")?.keys().filter(|name| !transcripts.contains_key(*name)) {
        let path = folder.join(name).with_extension("svg");
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for (name, transcript) in &transcripts {
        let path = folder.join(name).with_extension("svg");
        std::fs::write(&path, picture(transcript))
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns the files of a folder with this extension, by name. There are none without the folder.
fn read(folder: &Path, extension: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    if !folder.is_dir() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path);
            found.insert(name, text.with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    Ok(found)
}

/// Returns a transcript as the picture of a terminal.
fn picture(transcript: &str) -> String {
    let lines: Vec<&str> = transcript.lines().collect();
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
    let width = 2 * TEXT_MARGIN + pixels(longest.max(MIN_COLUMNS));
    let height = BAR_HEIGHT + TEXT_MARGIN + lines.len() * LINE_HEIGHT;
    let commands: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("$ ")).collect();
    let title = escaped(&format!("Terminal: {}", commands.join("; ")));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-labelledby=\"title\">\n<title id=\"title\">{title}</title>\n<style>{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"10\" fill=\"#1e1e2e\"/>\n"
    );
    for (x, color) in [(TEXT_MARGIN, "#f38ba8"), (TEXT_MARGIN + 20, "#f9e2af"), (TEXT_MARGIN + 40, "#a6e3a1")]
    {
        let _ = writeln!(svg, "<circle cx=\"{x}\" cy=\"{}\" r=\"6\" fill=\"{color}\"/>", BAR_HEIGHT / 2);
    }
    for (number, line) in (1..).zip(&lines).filter(|(_, line)| !line.is_empty()) {
        let y = BAR_HEIGHT + number * LINE_HEIGHT - LINE_HEIGHT / 4;
        // The length keeps columns aligned in every font.
        let length = pixels(line.chars().count());
        let _ = writeln!(
            svg,
            "<text x=\"{TEXT_MARGIN}\" y=\"{y}\" textLength=\"{length}\" xml:space=\"preserve\">{}</text>",
            colored(line)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the width of a number of characters in pixels.
fn pixels(chars: usize) -> usize {
    (chars * CHAR_WIDTH).div_ceil(100)
}

/// Returns a line of a transcript as SVG: prompt, command, comment and table heading have colors.
fn colored(line: &str) -> String {
    if let Some(command) = line.strip_prefix("$ ") {
        let (command, comment) = match command.find("  # ") {
            Some(at) => command.split_at(at),
            None => (command, ""),
        };
        let mut text = format!(
            "<tspan class=\"prompt\">$ </tspan><tspan class=\"command\">{}</tspan>",
            escaped(command)
        );
        if !comment.is_empty() {
            let _ = write!(text, "<tspan class=\"comment\">{}</tspan>", escaped(comment));
        }
        return text;
    }
    let is_head = line.split_whitespace().count() > 1
        && line.chars().any(char::is_uppercase)
        && !line.trim_end_matches(" s").chars().any(char::is_lowercase);
    if is_head { format!("<tspan class=\"head\">{}</tspan>", escaped(line)) } else { escaped(line) }
}

/// Returns text as XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Maximum number of columns of a transcript, so that its picture is readable in a page.
    const MAX_COLUMNS: usize = 130;
    /// Texts that show where a transcript was recorded.
    const PLACES: [&str; 6] = ["/tmp/", "/root/", "/home/", "/work/", "/run/netns/", "10.7.0.1:"];

    #[test]
    fn pictures_are_drawn_from_the_transcripts() {
        let folder = folder();
        let drawn: BTreeMap<String, String> = read(&folder, "txt")
            .unwrap()
            .into_iter()
            .map(|(name, transcript)| (name, picture(&transcript)))
            .collect();
        let stored = read(&folder, "svg").unwrap();
        assert!(!drawn.is_empty(), "no transcript in {}", folder.display());
        let names: BTreeSet<&String> = drawn.keys().chain(stored.keys()).collect();
        let stale: Vec<_> = names.into_iter().filter(|name| drawn.get(*name) != stored.get(*name)).collect();
        assert!(stale.is_empty(), "pictures {stale:?} are stale; run `cargo xtask pictures`");
    }

    #[test]
    fn transcripts_fit_into_a_page_and_name_no_place() {
        for (name, transcript) in read(&folder(), "txt").unwrap() {
            for (line, number) in transcript.lines().zip(1..) {
                assert!(line.chars().count() <= MAX_COLUMNS, "{name}.txt:{number} is too wide: {line}");
                let place = PLACES.iter().find(|place| line.contains(**place));
                assert!(place.is_none(), "{name}.txt:{number} has {place:?}: {line}");
            }
        }
    }

    #[test]
    fn page_shows_each_picture() {
        let page = std::fs::read_to_string(folder().with_extension("md")).unwrap();
        let shown = |name: &String| page.contains(&format!("](demo/{name}.svg)"));
        let missing: Vec<String> =
            read(&folder(), "txt").unwrap().into_keys().filter(|name| !shown(name)).collect();
        assert!(missing.is_empty(), "docs/getting-started/demo.md does not show {missing:?}");
    }

    #[test]
    fn picture_has_escaped_text_title_and_colors() {
        let svg = picture("$ kubectl get a -o <b>  # c\nNAME   AGE\nx & y  1 s\n");
        assert!(
            svg.contains("<title id=\"title\">Terminal: kubectl get a -o &lt;b&gt;  # c</title>"),
            "{svg}"
        );
        assert!(
            svg.contains(
                "<tspan class=\"prompt\">$ </tspan><tspan class=\"command\">kubectl get a -o &lt;b&gt;</tspan>\
                 <tspan class=\"comment\">  # c</tspan>"
            ),
            "{svg}"
        );
        assert!(svg.contains("<tspan class=\"head\">NAME   AGE</tspan>"), "{svg}");
        assert!(svg.contains(">x &amp; y  1 s</text>"), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }
}
