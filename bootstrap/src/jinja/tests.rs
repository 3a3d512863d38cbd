//! Rendering as Jinja does, and refusals. `tests/cloud_init.rs` compares more templates with Jinja itself.

use proptest::prelude::*;

use super::*;

pub(crate) const FACTS: Facts<'static> = Facts {
    provider_id: "bedplate://rack-1/6f9c",
    node_name: "md-0-x2x",
    local_hostname: "md-0-x2x.example",
    instance_id: "6f9c",
    platform: "bedplate",
};

fn rendered(body: &str) -> String {
    render(body, &FACTS).unwrap().to_string()
}

fn refused(body: &str) -> RenderJinjaError {
    render(body, &FACTS).unwrap_err()
}

#[test]
fn variables_have_the_names_of_cloud_init() {
    for (name, expected) in [
        ("ds.meta_data.name", "md-0-x2x"),
        ("ds.meta_data.hostname", "md-0-x2x.example"),
        ("ds.meta_data.local_hostname", "md-0-x2x.example"),
        ("ds.meta_data[\"local-hostname\"]", "md-0-x2x.example"),
        ("ds [ 'meta_data' ] . instance_id", "6f9c"),
        ("ds.meta_data.provider_id", "bedplate://rack-1/6f9c"),
        ("v1.local_hostname", "md-0-x2x.example"),
        ("v1['instance-id']", "6f9c"),
        ("v1.platform", "bedplate"),
        ("v1.cloud_name", "bedplate"),
        ("cloud_id", "bedplate"),
        ("local_hostname", "md-0-x2x.example"),
        ("instance_id", "6f9c"),
    ] {
        assert_eq!(rendered(&format!("a {{{{ {name} }}}} b")), format!("a {expected} b"));
        assert_eq!(rendered(&format!("{{{{{name}}}}}")), expected);
    }
}

/// Expectations are those of Jinja 3.1 with `trim_blocks`.
#[test]
fn white_space_is_that_of_jinja_with_trim_blocks() {
    for (body, expected) in [
        ("a\n  {{- instance_id -}}  \n b\n", "a6f9cb\n"),
        ("a {{+ instance_id }} b", "a 6f9c b"),
        ("a\n{# one #}\nb\n", "a\nb\n"),
        ("a\n{# one +#}\nb\n", "a\n\nb\n"),
        ("a \n{#- one -#} \n b\n", "ab\n"),
        ("a{#-#}b", "ab"),
        ("a{##}\n", "a\n"),
        ("{% raw %}\n{{ x }}{# y #}\n{% endraw %}\nb", "\n{{ x }}{# y #}\nb"),
        ("a {%- raw -%} {% x %} {%- endraw -%} b", "a{% x %}b"),
        ("{% raw %}x{% endraw +%}\nb", "x\nb"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\n\n", "a\n\n"),
        ("a\r", "a"),
        ("{ { } } %} }} #}", "{ { } } %} }} #}"),
        ("", ""),
        ("\n", "\n"),
    ] {
        assert_eq!(rendered(body), expected, "{body:?}");
    }
}

#[test]
fn everything_but_variables_raw_and_comments_is_refused_with_its_line() {
    use JinjaCause::{Expression, Statement, Unclosed, Unknown};
    for (body, cause) in [
        ("{% if x %}a{% endif %}", Statement),
        ("{% raw +%}a{% endraw %}", Statement),
        ("{{ instance_id | upper }}", Expression),
        ("{{ local_hostname.split(\".\")[0] }}", Expression),
        ("{{ 'text' }}", Expression),
        ("{{ 1 }}", Expression),
        ("{{ }}", Expression),
        ("{{ a.b.c.d.e }}", Expression),
        ("{{ ds.meta_data.region }}", Unknown(Some("ds.meta_data.region".to_owned()))),
        ("{{ v1.region }}", Unknown(Some("v1.region".to_owned()))),
        ("{{ password }}", Unknown(None)),
        ("{{ instance_id", Unclosed("a variable")),
        ("{# a", Unclosed("a comment")),
        ("{% raw %} a", Unclosed("{% raw %}")),
        ("{% raw", Unclosed("a statement")),
    ] {
        assert_eq!(refused(&format!("a\n\n{body}\n")), RenderJinjaError { line: 4, cause }, "{body}");
    }
}

#[test]
fn message_has_line_and_supported_variables_and_no_content() {
    let error = refused("x: {{ Secret | upper }}").to_string();
    assert!(error.starts_with("line 2: a Jinja expression is not the name of a variable; use"), "{error}");
    assert!(error.contains("ds.meta_data.{name,") && !error.contains("Secret"), "{error}");
}

#[test]
fn facts_that_could_become_syntax_are_refused() {
    for bad in ["", "a b", "a\nb", "a: b", "{{", "\"", "'"] {
        let facts = Facts { node_name: bad, ..FACTS };
        assert_eq!(render("", &facts).unwrap_err().cause, JinjaCause::Fact("node_name"), "{bad:?}");
    }
}

#[test]
fn rendered_text_is_bounded() {
    let long = "x".repeat(MAX_FACT_BYTES);
    let facts = Facts { instance_id: &long, ..FACTS };
    let body = "{{instance_id}}".repeat(10_000);
    assert_eq!(render(&body, &facts).unwrap_err().cause, JinjaCause::Large);
}

#[test]
fn header_is_found_as_by_cloud_init() {
    for (text, expected) in [
        ("## template: jinja\nrest", Some("rest")),
        ("## template: jinja   \nrest", Some("rest")),
        ("## template: jinja\t\r\nrest", Some("rest")),
        ("## Template: JINJA\nrest", Some("rest")),
        ("## template: jinja", Some("")),
        (" ## template: jinja\nrest", None),
        ("## template:jinja\nrest", None),
        ("##template: jinja\nrest", None),
        ("## template: jinja2\nrest", None),
        ("#cloud-config\n## template: jinja\n", None),
        ("## template: jinjä\n", None),
    ] {
        assert_eq!(template_body(text), expected, "{text:?}");
    }
}

proptest! {
    #[test]
    fn rendering_never_panics(body in "[{}%#\\-+ \\n\\ra-z.\\[\\]\"'raw]{0,80}") {
        let _ = render(&body, &FACTS);
    }

    #[test]
    fn text_without_tags_is_kept(body in "[^{\\r]{0,80}") {
        prop_assert_eq!(rendered(&body), body);
    }

    #[test]
    fn raw_text_is_kept(body in "[a-z{}#\\n ]{0,80}") {
        prop_assert_eq!(rendered(&format!("{{% raw %}}{body}{{% endraw %}}")), body);
    }
}
