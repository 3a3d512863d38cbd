//! Licences and origins of all dependencies, checked offline against deny.toml when cargo-deny is not installed.
//!
//! It reads the same `allow` list as cargo-deny and knows nothing of advisories.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::build;

/// Fails naming each crate whose licence is not allowed or that does not come from crates.io.
pub(crate) fn check() -> Result<()> {
    let text =
        std::fs::read_to_string(crate::host::root().join("deny.toml")).context("cannot read deny.toml")?;
    let allowed = list(&text, "allow");
    if allowed.is_empty() {
        bail!("deny.toml has no list `allow` of licences");
    }
    let output = build::cargo()
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wrong: Vec<String> = packages.iter().filter_map(|package| complaint(package, &allowed)).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("not allowed by deny.toml:\n  {}", wrong.join("\n  "))
}

/// The texts of `key = [ "...", ... ]`.
fn list(text: &str, key: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(|line| line.split('#').next().unwrap_or_default()).collect();
    let text = lines.join("\n");
    let Some(start) = text.find(&format!("\n{key} = [")) else { return Vec::new() };
    let rest = &text[start..];
    let end = rest.find(']').unwrap_or(rest.len());
    rest[..end].split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn complaint(package: &Value, allowed: &[String]) -> Option<String> {
    let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
    let source = package["source"].as_str();
    if source.is_some_and(|source| source != "registry+https://github.com/rust-lang/crates.io-index") {
        return Some(format!("{name}: comes from {}", source.unwrap_or_default()));
    }
    match package["license"].as_str() {
        Some(licence) if is_allowed(licence, allowed) => None,
        Some(licence) => Some(format!("{name}: {licence}")),
        None => Some(format!("{name}: names no licence")),
    }
}

/// Whether an SPDX expression can be met with the allowed licences alone; `A/B` is the old spelling of `A OR B`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.as_slice();
    let met = any_of(&mut rest, allowed);
    met && rest.is_empty()
}

fn any_of(rest: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = all_of(rest, allowed);
    while let [word, tail @ ..] = *rest {
        if !word.eq_ignore_ascii_case("or") {
            break;
        }
        *rest = tail;
        met |= all_of(rest, allowed);
    }
    met
}

fn all_of(rest: &mut &[&str], allowed: &[String]) -> bool {
    let mut met = one(rest, allowed);
    while let [word, tail @ ..] = *rest {
        if !word.eq_ignore_ascii_case("and") {
            break;
        }
        *rest = tail;
        met &= one(rest, allowed);
    }
    met
}

fn one(rest: &mut &[&str], allowed: &[String]) -> bool {
    match *rest {
        ["(", tail @ ..] => {
            *rest = tail;
            let met = any_of(rest, allowed);
            if let [")", tail @ ..] = *rest {
                *rest = tail;
            }
            met
        }
        [licence, "WITH", exception, tail @ ..] => {
            let whole = format!("{licence} WITH {exception}");
            *rest = tail;
            allowed.iter().any(|a| *a == whole || a == licence)
        }
        [licence, tail @ ..] => {
            let licence = *licence;
            *rest = tail;
            allowed.iter().any(|a| a == licence)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_is_met_only_by_allowed_licences() {
        let allowed = ["MIT".to_owned(), "Apache-2.0".to_owned()];
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-2.0/MIT",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR Zlib",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR Zlib) AND GPL-3.0", "MIT MIT"] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn allow_list_is_read_over_several_lines_and_comments() {
        let text = "[licenses]\nallow = [\n  \"MIT\", # plain\n  \"Zlib\",\n]\n";
        assert_eq!(list(text, "allow"), ["MIT", "Zlib"]);
    }
}
