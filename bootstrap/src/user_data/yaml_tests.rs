//! Reading YAML as PyYAML does: bounds, refusals and lines.

use super::*;

fn cause(text: &str) -> (usize, YamlCause) {
    let error = parse(text).err().unwrap_or_else(|| panic!("{text:?} is accepted"));
    (error.line, error.cause)
}

fn text_of(node: &Node) -> String {
    match &node.value {
        Value::Text(text) => text.to_string(),
        _ => panic!("not text"),
    }
}

#[test]
fn yaml_that_is_not_supported_is_refused_with_its_line() {
    for (text, expected) in [
        ("a: [", (2, YamlCause::Syntax)),
        ("a: 1\nb: *x\n", (2, YamlCause::Syntax)),
        ("a: &x [*x]\n", (1, YamlCause::Recursive)),
        ("a: 1\n---\nb: 1\n", (2, YamlCause::Documents)),
        ("a: !!int 1\n", (1, YamlCause::Tag)),
        ("a: !thing 1\n", (1, YamlCause::Tag)),
        ("\na: !!set {b}\n", (2, YamlCause::Tag)),
        ("a: !!binary '!'\n", (1, YamlCause::Binary)),
        ("a: &x {b: c}\nd:\n  <<: *x\n", (3, YamlCause::Merge)),
        ("1: a\n", (1, YamlCause::Key)),
        ("yes: a\n", (1, YamlCause::Key)),
        ("? [a]\n: b\n", (1, YamlCause::Key)),
        ("a: 1\nb: 1\na: 1\n", (3, YamlCause::Duplicate)),
    ] {
        assert_eq!(cause(text).1, expected.1, "{text:?}");
        assert!(cause(text).0.abs_diff(expected.0) <= 1, "{text:?}: line {}", cause(text).0);
    }
}

#[test]
fn depth_is_bounded_also_through_aliases() {
    assert_eq!(cause(&"[".repeat(200)).1, YamlCause::Syntax);
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(parse(&nested(32)).is_ok());
    assert!(matches!(cause(&nested(33)).1, YamlCause::Deep | YamlCause::Syntax));
    let mut text = "- &a0 [x]\n".to_owned();
    for level in 1..40 {
        text += &format!("- &a{level} [*a{}]\n", level - 1);
    }
    assert_eq!(cause(&text).1, YamlCause::Deep);
}

/// Billion laughs: ten levels of ten aliases each.
#[test]
fn aliases_share_their_node_and_are_bounded() {
    let mut text = "- &a0 [x]\n".to_owned();
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("- &a{level} [{aliases}]\n");
    }
    let Value::List(items) = &parse(&text).unwrap().value else { panic!("not a list") };
    assert_eq!(items.len(), 10);
    let many = format!("a: &x b\nc: [{}]\n", vec!["*x"; 1001].join(", "));
    assert_eq!(cause(&many).1, YamlCause::Aliases);
}

#[test]
fn nodes_are_bounded() {
    let list = |count: usize| "- a\n".repeat(count);
    assert!(parse(&list(99_999)).is_ok());
    assert_eq!(cause(&list(100_000)).1, YamlCause::Nodes);
}

#[test]
fn quoted_scalars_are_text_and_blocks_keep_their_lines() {
    let root = parse("a: '0644'\nb: !!str 0644\nc: |\n  x\n   y\n\nd: !!binary aGk=\ne: 0644\n").unwrap();
    let Value::Map(entries) = &root.value else { panic!("not a map") };
    assert_eq!(text_of(&entries[0].1), "0644");
    assert_eq!(text_of(&entries[1].1), "0644");
    assert_eq!(text_of(&entries[2].1), "x\n y\n");
    assert!(matches!(&entries[3].1.value, Value::Bytes(bytes) if ***bytes == *b"hi"));
    assert!(matches!(entries[4].1.value, Value::Scalar(Scalar::Integer { value: 0o644, .. })));
    assert_eq!(entries[1].1.line, 2);
}

#[test]
fn empty_text_is_null() {
    for text in ["", "\n# comment\n", "---\n", "~"] {
        assert!(matches!(parse(text).unwrap().value, Value::Scalar(Scalar::Null)), "{text:?}");
    }
}
