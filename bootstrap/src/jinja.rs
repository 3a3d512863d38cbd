//! Pure: the part of Jinja that user data may use: variables, raw blocks and comments.
//!
//! The result equals that of Jinja 3 with the settings of cloud-init (`trim_blocks`), byte for byte. Expressions, filters and
//! statements are refused, so that nothing on a host evaluates a template engine. An unknown variable is refused too: cloud-init
//! would write `CI_MISSING_JINJA_VAR/` and its name into the file. Errors name lines and variables, never content. Called by
//! `user_data`.
//!
//! ```text
//!   {{ ds.meta_data.NAME }}  {{ ds.meta_data["NAME"] }}  {{ v1.NAME }}  {{ NAME }}
//!   {% raw %} text {% endraw %}
//!   {# comment #}
//! ```
//! `-` next to a brace removes white space on that side, as in Jinja.

use std::fmt;

use zeroize::Zeroizing;

/// First line of a template, in any case; white space may follow.
const HEADER: &str = "## template: jinja";

/// Maximum size of a rendered template, in bytes.
const MAX_RENDERED_BYTES: usize = 2 << 20;

/// Maximum size of a fact, in bytes.
const MAX_FACT_BYTES: usize = 253;

/// Maximum number of parts in the name of a variable.
const MAX_NAME_PARTS: usize = 4;

/// Values of the variables. They contain letters, digits and `-._:/@` only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a> {
    /// `spec.providerID` of the Node: `ds.meta_data.provider_id`.
    pub provider_id: &'a str,
    /// Name of the Node: `ds.meta_data.name`.
    pub node_name: &'a str,
    /// Host name of the slot: `local_hostname`, and `ds.meta_data.hostname`.
    pub local_hostname: &'a str,
    /// Identifier of this instance: `instance_id`.
    pub instance_id: &'a str,
    /// Name of the platform: `v1.platform`, `v1.cloud_name` and `v1.cloud_id`.
    pub platform: &'a str,
}

/// Names that an error can list.
const KNOWN: &str = "ds.meta_data.{name,hostname,local_hostname,instance_id,provider_id} and \
                     v1.{local_hostname,instance_id,platform,cloud_name,cloud_id}";

impl<'a> Facts<'a> {
    fn all(&self) -> [(&'static str, &'a str); 5] {
        [
            ("provider_id", self.provider_id),
            ("node_name", self.node_name),
            ("local_hostname", self.local_hostname),
            ("instance_id", self.instance_id),
            ("platform", self.platform),
        ]
    }

    /// Returns the first fact that is not one word of plain characters. Such a value could become YAML syntax.
    fn unfit(&self) -> Option<&'static str> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@".contains(&byte);
        let fits =
            |value: &str| !value.is_empty() && value.len() <= MAX_FACT_BYTES && value.bytes().all(plain);
        self.all().into_iter().find(|(_, value)| !fits(value)).map(|(name, _)| name)
    }

    /// Returns the value of a variable.
    fn value(&self, name: &[&str]) -> Option<&'a str> {
        match *name {
            ["ds", "meta_data", key] => match key {
                "name" => Some(self.node_name),
                "hostname" => Some(self.local_hostname),
                "provider_id" | "provider-id" => Some(self.provider_id),
                _ => self.common(key),
            },
            // cloud-init has each key of `v1` at the top too.
            ["v1", key] | [key] => match key {
                "platform" | "cloud_name" | "cloud-name" | "cloud_id" => Some(self.platform),
                _ => self.common(key),
            },
            _ => None,
        }
    }

    fn common(&self, key: &str) -> Option<&'a str> {
        match key {
            "local_hostname" | "local-hostname" => Some(self.local_hostname),
            "instance_id" | "instance-id" => Some(self.instance_id),
            _ => None,
        }
    }
}

/// Failure to render a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {cause}; {}", .cause.remedy())]
pub struct RenderJinjaError {
    /// Line of the user data, from 1.
    pub line: usize,
    /// Cause.
    pub cause: JinjaCause,
}

/// Cause of a failure to render a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JinjaCause {
    /// A statement other than `raw`.
    Statement,
    /// An expression that is not the name of a variable.
    Expression,
    /// A variable that does not exist. The name is present if it begins as those of cloud-init do.
    Unknown(Option<String>),
    /// A tag without an end.
    Unclosed(&'static str),
    /// A fact that is not one plain word.
    Fact(&'static str),
    /// A result that is too large.
    Large,
}

impl fmt::Display for JinjaCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statement => f.write_str("a Jinja statement other than raw is not supported"),
            Self::Expression => f.write_str("a Jinja expression is not the name of a variable"),
            Self::Unknown(Some(name)) => write!(f, "the variable {name} does not exist"),
            Self::Unknown(None) => f.write_str("a variable does not exist"),
            Self::Unclosed(tag) => write!(f, "{tag} has no end"),
            Self::Fact(name) => write!(f, "the fact {name} is not one word of plain characters"),
            Self::Large => write!(f, "the rendered text is larger than {MAX_RENDERED_BYTES} bytes"),
        }
    }
}

impl JinjaCause {
    /// Returns the next step of the user.
    pub fn remedy(&self) -> String {
        match self {
            Self::Statement | Self::Expression => {
                format!("use variables ({KNOWN}), {{% raw %}} and comments only")
            }
            Self::Unknown(_) => format!("use one of {KNOWN}, or put the text into {{% raw %}}"),
            Self::Unclosed(_) => "close it, or put the text into {% raw %}".to_owned(),
            Self::Fact(_) => "report this as a bug".to_owned(),
            Self::Large => "shorten the user data".to_owned(),
        }
    }
}

/// Returns the text below the header if it is a template.
pub fn template_body(text: &str) -> Option<&str> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (header, tail) = first.split_at_checked(HEADER.len())?;
    (header.eq_ignore_ascii_case(HEADER) && tail.chars().all(is_space)).then_some(rest)
}

/// Renders the text below the header. Lines of errors count the header.
///
/// # Errors
/// A tag that is not supported, an unknown variable, or a result that is too large.
pub fn render(body: &str, facts: &Facts<'_>) -> Result<Zeroizing<String>, RenderJinjaError> {
    if let Some(name) = facts.unfit() {
        return Err(RenderJinjaError { line: 1, cause: JinjaCause::Fact(name) });
    }
    let source = with_plain_newlines(body);
    let mut renderer = Renderer { source: &source, rest: &source, facts, out: Zeroizing::default() };
    // One allocation: a growing text would leave copies of its content in memory.
    let most = source.len() + source.matches("{{").count() * MAX_FACT_BYTES + 1;
    renderer.out.reserve(most.min(MAX_RENDERED_BYTES));
    renderer.run()?;
    let mut out = renderer.out;
    if body.ends_with('\n') {
        out.push('\n');
    }
    Ok(out)
}

/// Returns the text with `\n` for each line break, without the last one. Jinja does this before it reads tags.
fn with_plain_newlines(text: &str) -> Zeroizing<String> {
    let mut plain = Zeroizing::new(String::with_capacity(text.len()));
    let mut rest = text;
    while let Some(at) = rest.find('\r') {
        plain.push_str(&rest[..at]);
        plain.push('\n');
        rest = &rest[at + 1..];
        rest = rest.strip_prefix('\n').unwrap_or(rest);
    }
    plain.push_str(rest);
    if plain.ends_with('\n') {
        plain.pop();
    }
    plain
}

/// Returns true for white space as Python counts it.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

fn skip_space(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Control of white space, next to the braces of a tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Minus,
    Plus,
    None,
}

fn sign(text: &str) -> (Sign, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (Sign::Minus, &text[1..]),
        Some(b'+') => (Sign::Plus, &text[1..]),
        _ => (Sign::None, text),
    }
}

struct Renderer<'s, 'f> {
    source: &'s str,
    rest: &'s str,
    facts: &'s Facts<'f>,
    out: Zeroizing<String>,
}

impl<'s> Renderer<'s, '_> {
    fn run(&mut self) -> Result<(), RenderJinjaError> {
        while let Some((at, kind)) = next_tag(self.rest) {
            let tag = &self.rest[at..];
            let (start, inside) = sign(&tag[2..]);
            let text = &self.rest[..at];
            self.push(if start == Sign::Minus { text.trim_end_matches(is_space) } else { text }, tag)?;
            self.rest = match kind {
                b'{' => self.variable(tag, inside)?,
                b'#' => {
                    let end = comment_end(inside);
                    end.ok_or_else(|| self.error(tag, JinjaCause::Unclosed("a comment")))?
                }
                _ => self.raw(tag, inside)?,
            };
        }
        self.push(self.rest, self.rest)
    }

    /// Renders a variable and returns the text after it.
    fn variable(&mut self, tag: &'s str, inside: &'s str) -> Result<&'s str, RenderJinjaError> {
        if !inside.contains("}}") {
            return Err(self.error(tag, JinjaCause::Unclosed("a variable")));
        }
        let (name, rest) = variable_name(inside).ok_or_else(|| self.error(tag, JinjaCause::Expression))?;
        let after = match (rest.strip_prefix("-}}"), rest.strip_prefix("}}")) {
            (Some(after), _) => skip_space(after),
            (None, Some(after)) => after,
            (None, None) => return Err(self.error(tag, JinjaCause::Expression)),
        };
        let value = self.facts.value(&name).ok_or_else(|| {
            let is_ours = matches!(name.first(), Some(&"ds" | &"v1"));
            self.error(tag, JinjaCause::Unknown(is_ours.then(|| name.join("."))))
        })?;
        self.push(value, tag)?;
        Ok(after)
    }

    /// Copies a raw block and returns the text after it.
    fn raw(&mut self, tag: &'s str, inside: &'s str) -> Result<&'s str, RenderJinjaError> {
        let body = block_end(inside, "raw", false).ok_or_else(|| {
            let is_open = !inside.contains("%}");
            let cause = if is_open { JinjaCause::Unclosed("a statement") } else { JinjaCause::Statement };
            self.error(tag, cause)
        })?;
        for (at, _) in body.match_indices("{%") {
            let (start, inside) = sign(&body[at + 2..]);
            if let Some(after) = block_end(inside, "endraw", true) {
                let text = &body[..at];
                self.push(if start == Sign::Minus { text.trim_end_matches(is_space) } else { text }, tag)?;
                return Ok(after);
            }
        }
        Err(self.error(tag, JinjaCause::Unclosed("{% raw %}")))
    }

    fn push(&mut self, text: &str, place: &str) -> Result<(), RenderJinjaError> {
        if self.out.len() + text.len() >= MAX_RENDERED_BYTES {
            return Err(self.error(place, JinjaCause::Large));
        }
        self.out.push_str(text);
        Ok(())
    }

    /// Makes an error at a place of the source; the header is line 1.
    fn error(&self, place: &str, cause: JinjaCause) -> RenderJinjaError {
        let before = &self.source[..self.source.len() - place.len()];
        RenderJinjaError { line: before.matches('\n').count() + 2, cause }
    }
}

/// Returns the place and the second character of the next tag.
fn next_tag(text: &str) -> Option<(usize, u8)> {
    let bytes = text.as_bytes();
    let opens = |at: &usize| matches!(bytes.get(at + 1), Some(b'{' | b'%' | b'#'));
    text.match_indices('{').map(|(at, _)| at).find(opens).map(|at| (at, bytes[at + 1]))
}

/// Returns the text after a comment.
fn comment_end(inside: &str) -> Option<&str> {
    let at = inside.find("#}")?;
    let after = &inside[at + 2..];
    Some(match inside.as_bytes()[..at].last() {
        Some(b'-') => skip_space(after),
        Some(b'+') => after,
        _ => after.strip_prefix('\n').unwrap_or(after),
    })
}

/// Returns the text after a tag of this name. Only its second form takes `+` and removes a line break after it.
fn block_end<'t>(inside: &'t str, name: &str, is_second: bool) -> Option<&'t str> {
    let rest = skip_space(skip_space(inside).strip_prefix(name)?);
    if let Some(after) = rest.strip_prefix("-%}") {
        return Some(skip_space(after));
    }
    if is_second && let Some(after) = rest.strip_prefix("+%}") {
        return Some(after);
    }
    let after = rest.strip_prefix("%}")?;
    Some(if is_second { after.strip_prefix('\n').unwrap_or(after) } else { after })
}

/// Reads `name.name["name"]` and returns its parts, and the text after it and white space.
fn variable_name(text: &str) -> Option<(Vec<&str>, &str)> {
    let (first, mut rest) = identifier(skip_space(text))?;
    let mut parts = vec![first];
    loop {
        rest = skip_space(rest);
        let (part, after) = if let Some(after) = rest.strip_prefix('.') {
            identifier(skip_space(after))?
        } else if let Some(after) = rest.strip_prefix('[') {
            subscript(skip_space(after))?
        } else {
            return Some((parts, rest));
        };
        if parts.len() == MAX_NAME_PARTS {
            return None;
        }
        parts.push(part);
        rest = after;
    }
}

fn identifier(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())).then_some((name, rest))
}

/// Reads `"name"]`.
fn subscript(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (name, rest) = text[1..].split_once(quote)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let rest = skip_space(rest).strip_prefix(']')?;
    name.chars().all(plain).then_some((name, rest))
}

#[cfg(test)]
pub(crate) mod tests;
