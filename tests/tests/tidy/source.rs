//! A source file as text: what of it is code, what of that is production, which functions it has. Called by the tidy tests.
//!
//! No parser of Rust: it knows comments, texts and braces, which is all that measuring wants.

use std::ops::Range;

/// A Rust source.
pub(crate) struct Source {
    /// Relative to the repository.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Taken in by `#[cfg(test)] mod ...;`.
    pub(crate) test_only: bool,
}

/// A function with a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// Where it begins, from 1.
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

impl Source {
    /// A file that holds tests only.
    pub(crate) fn is_test(&self) -> bool {
        let file = self.path.rsplit('/').next().unwrap_or_default();
        self.test_only
            || file == "tests.rs"
            || file.ends_with("_tests.rs")
            || self.path.contains("/tests/")
            || self.path.starts_with("fuzz/")
    }

    /// Whether its head says `Pure:`.
    pub(crate) fn is_pure(&self) -> bool {
        self.text.lines().take_while(|line| line.starts_with("//!")).any(|line| line.starts_with("//! Pure"))
    }

    /// The text with comments and the insides of literals blanked; lines keep their numbers.
    pub(crate) fn code(&self) -> String {
        blank(&self.text)
    }

    /// [`Self::code`] with test modules blanked too.
    pub(crate) fn production_code(&self) -> String {
        without_test_modules(&self.code())
    }

    /// The text with test modules blanked, comments and literals as they are; lines keep their numbers.
    pub(crate) fn production_text(&self) -> String {
        let code = self.code();
        let place = |byte: usize| code[..byte].chars().count();
        // Blanking keeps the place of every character, not of every byte.
        let parts: Vec<_> = test_parts(&code).iter().map(|part| place(part.start)..place(part.end)).collect();
        let is_test = |at: usize| parts.iter().any(|part| part.contains(&at));
        let blanked = |(at, c)| if is_test(at) && c != '\n' { ' ' } else { c };
        self.text.chars().enumerate().map(blanked).collect()
    }

    /// Lines of production: the text without its test modules; comments count, blank lines do not.
    pub(crate) fn production_lines(&self) -> usize {
        let code = self.production_code();
        let kept = code
            .lines()
            .zip(self.text.lines())
            .filter(|(code, text)| !code.trim().is_empty() || text.trim_start().starts_with("//"));
        kept.count()
    }
}

/// Kind of a piece of text that is not code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Comment,
    Literal,
}

/// Pieces of a source that are not code, in order: comments, and literals of texts and characters.
pub(crate) fn pieces(text: &str) -> Vec<(Range<usize>, Kind)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(character) = text[at..].chars().next() {
        let rest = &text[at..];
        let piece = if rest.starts_with("//") {
            Some((rest.find('\n').unwrap_or(rest.len()), Kind::Comment))
        } else if rest.starts_with("/*") {
            Some((rest.find("*/").map_or(rest.len(), |end| end + 2), Kind::Comment))
        } else if let Some(length) = raw_text(rest) {
            let before = text[..at].chars().next_back();
            let is_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
            (!is_name).then_some((length, Kind::Literal))
        } else if rest.starts_with('"') {
            Some((quoted(rest, '"'), Kind::Literal))
        } else if is_character(rest) {
            Some((quoted(rest, '\''), Kind::Literal))
        } else {
            None
        };
        let length = piece.map_or(character.len_utf8(), |(length, _)| length);
        found.extend(piece.map(|(_, kind)| (at..at + length, kind)));
        at += length;
    }
    found
}

/// Blanks comments, texts and characters, keeping line breaks.
pub(crate) fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for (piece, _) in pieces(text) {
        out.push_str(&text[from..piece.start]);
        out.extend(text[piece.clone()].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        from = piece.end;
    }
    out.push_str(&text[from..]);
    out
}

/// Length of `r"..."`, `r#"..."#`, `br"..."`.
fn raw_text(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inside = body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inside.find(&close)?;
    Some(rest.len() - inside.len() + end + close.len())
}

/// A character, not a lifetime: 'x', '\n', '\u{..}'.
fn is_character(rest: &str) -> bool {
    let Some(inside) = rest.strip_prefix('\'') else { return false };
    let mut characters = inside.chars();
    match characters.next() {
        Some('\\') => true,
        Some(_) => characters.next() == Some('\''),
        None => false,
    }
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Blanks every `#[cfg(test)] mod ... { ... }`.
fn without_test_modules(code: &str) -> String {
    let mut out = code.to_owned();
    for part in test_parts(code) {
        let blanked: String =
            code[part.clone()].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(part, &blanked);
    }
    out
}

/// Where the test modules are, in bytes of what is left of a text without comments and literals.
fn test_parts(code: &str) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut from = 0;
    while let Some(start) = code[from..].find("#[cfg(test)]").map(|at| at + from) {
        let rest = &code[start..];
        let open = rest.find('{').filter(|open| !rest[..*open].contains(';'));
        let end = match open {
            Some(open) => open + block(&rest[open..]),
            None => rest.find(';').map_or(rest.len(), |semicolon| semicolon + 1),
        };
        from = start + end;
        parts.push(start..from);
    }
    parts
}

/// Length of a block, from its `{` to behind its `}`.
fn block(code: &str) -> usize {
    let mut depth = 0_usize;
    for (index, character) in code.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Every function with a body.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("fn ").map(|at| at + from) {
        from = at + 3;
        let word_begins = code[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let rest = &code[from..];
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !word_begins || name.is_empty() {
            continue;
        }
        let Some(open) = body(rest) else { continue };
        let length = open + block(&rest[open..]);
        let line = code[..at].matches('\n').count() + 1;
        found.push(Function { name, line, lines: rest[..length].matches('\n').count() + 1 });
    }
    found
}

/// Where a function's body opens; none for a declaration. Semicolons inside brackets (`[u8; 4]`) do not end it.
fn body(rest: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (index, character) in rest.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ';' if depth == 0 => return None,
            '{' if depth == 0 => return Some(index),
            _ => {}
        }
    }
    None
}

#[test]
fn functions_are_measured_whatever_they_hold() {
    let text = "fn one() {\n  let c = '{'; // }\n  \"}\\\"}\";\n}\ntrait T { fn none(&self) -> [u8; 2]; }\nfn two(a: [u8; 2]) { r#\"}\"#; }\n";
    let found = functions(&blank(text));
    let seen: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
    assert_eq!(seen, [("one", 1, 4), ("two", 6, 1)]);
}

#[test]
fn test_modules_are_not_production() {
    let source = Source {
        test_only: false,
        path: "x/src/y.rs".into(),
        text: "//! Head.\nfn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n#[cfg(test)]\nmod more;\nfn c<'a>() {}\n".into(),
    };
    assert_eq!(functions(&source.production_code()).len(), 2);
    assert_eq!(source.production_lines(), 3);
    assert!(source.production_text().starts_with("//! Head.\nfn a() {}\n "));
    assert!(source.production_text().trim_end().ends_with("fn c<'a>() {}"));
}
