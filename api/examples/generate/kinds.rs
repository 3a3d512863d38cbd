//! docs/reference/kinds.md: the fields of Bedplate's own kinds, from their definitions and the table of writers.
//!
//! Pure. Kubernetes' own types are not expanded, and an object that an earlier kind has is a link to it. Called by `generate`.

use std::fmt::Write as _;

use bedplate_api::crds::{bootstrap_definitions, core_definitions, definitions, infrastructure_definitions};
use bedplate_api::writers::{self, Row};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition,
};
use serde_json::{Value, to_value};

/// Text before the index.
const HEAD: &str = "\
<!-- Made from api/src by `cargo xtask generate`: do not edit. -->

# API reference

All fields of Bedplate's own kinds. `kubectl explain KIND.spec --api-version=bedplate.dev/v1alpha1` prints
the same descriptions. The option is needed only for kinds whose name another API uses, such as Machine of Cluster API.

- `[]` after a name: each entry of the list. `<key>`: each key of the map.
- A required field is required only if its parent is set.
- Conditions have the fields of Kubernetes: `type`, `status`, `reason`, `message`, `observedGeneration` and `lastTransitionTime`.
- Texts must also match a pattern, which the definition has. The API server names it when it rejects a value.
- A field may depend on other fields. The API server rejects a combination with a message that names them.

";

/// Pages that explain the kinds to users, by kind.
const GUIDES: [(&str, &str); 9] = [
    ("Machine", "[Machine](../guides/machine.md)"),
    ("MachineConfiguration", "[MachineConfiguration](../guides/machine-configuration.md)"),
    ("MachineConfigurationVersion", "[controller](../concepts/controller.md)"),
    ("MachineOperation", "[machine operations](../guides/machine-operations.md)"),
    ("MachineClaim", "[pool of hosts](../guides/claims.md)"),
    ("BedplateCluster", "[infrastructure provider](infrastructure-provider.md)"),
    ("BedplateClusterTemplate", "[infrastructure provider](infrastructure-provider.md)"),
    ("BedplateMachine", "[infrastructure provider](infrastructure-provider.md)"),
    ("BedplateMachineTemplate", "[infrastructure provider](infrastructure-provider.md)"),
];

/// Writer of the statuses that the table of writers does not have.
const INFRASTRUCTURE_WRITER: &str = "bedplate-cluster";
/// Minimum number of fields of an object that is a link if an earlier kind has the same object.
const MIN_SHARED_FIELDS: usize = 5;
/// Maximum number of words of an enum that the table of fields lists. The table of values has more.
const MAX_LISTED_WORDS: usize = 4;

/// Object of an earlier kind: schema of its fields, path, and kind.
type Known = (Value, String, String);

/// A field with its description in parts.
struct Field {
    path: String,
    kind: String,
    range: String,
    description: String,
    writers: String,
}

/// Tables of one kind.
struct Tables<'a> {
    kind: &'a str,
    rows: &'static [Row],
    fields: Vec<Field>,
    /// Path, value and meaning.
    values: Vec<[String; 3]>,
    /// Type, meaning and writers.
    conditions: Vec<[String; 3]>,
    known: &'a mut Vec<Known>,
}

/// Returns the page.
pub(crate) fn page() -> String {
    let all: Vec<_> = definitions().into_iter().chain(infrastructure_definitions()).collect();
    let mut page = HEAD.to_owned();
    page.push_str(&table(&["kind", "short name", "scope", "guide"], all.iter().map(index)));
    let mut known = Vec::new();
    for definition in &all {
        section(&mut page, definition, &mut known);
    }
    page.push_str(&others());
    page
}

/// Row of the index.
fn index(definition: &CustomResourceDefinition) -> Vec<String> {
    let names = &definition.spec.names;
    let guide = GUIDES.iter().find(|(kind, _)| *kind == names.kind).expect("each kind has a guide").1;
    let link = format!("[{}](#{})", names.kind, names.singular.as_deref().unwrap_or_default());
    let short = code(names.short_names.as_deref().unwrap_or_default());
    vec![link, short, definition.spec.scope.to_lowercase(), guide.to_owned()]
}

/// Adds the section of a kind.
fn section(page: &mut String, definition: &CustomResourceDefinition, known: &mut Vec<Known>) {
    let (spec, names) = (&definition.spec, &definition.spec.names);
    let version = &spec.versions[0];
    let schema = to_value(&version.schema).expect("a schema is plain data");
    let schema = &schema["openAPIV3Schema"];
    let scope = if spec.scope == "Cluster" { "Cluster-scoped" } else { "Namespaced" };
    let short = code(names.short_names.as_deref().unwrap_or_default());
    let mut add = |text: String| page.push_str(&text);
    add(format!("\n## {}\n\n{}\n\n", names.kind, description(schema)));
    add(format!("API version `{}/{}`. {scope}. Short name: {short}.", spec.group, version.name));
    add(format!(" Category: {}.\n", code(names.categories.as_deref().unwrap_or_default())));
    if let Some(columns) = &version.additional_printer_columns {
        add(format!("\n### Columns of a {}\n\n", names.kind));
        add(table(&["column", "shown by", "description"], columns.iter().map(column)));
    }
    let rows = writers::KINDS.iter().find(|(plural, _)| *plural == names.plural).map(|(_, rows)| *rows);
    let mut tables = Tables {
        kind: &names.kind,
        rows: rows.unwrap_or_default(),
        fields: Vec::new(),
        values: Vec::new(),
        conditions: Vec::new(),
        known,
    };
    for (part, title) in [("spec", "Spec"), ("status", "Status")] {
        let schema = &schema["properties"][part];
        if schema.is_object() {
            add(format!("\n### {title} of a {}\n\n{}\n\n", names.kind, description(schema)));
            tables.shared(schema, part);
            tables.children(schema, part);
            add(tables.take_fields(part == "status"));
        }
    }
    add(tables.rest());
}

/// Row of a printed column.
fn column(column: &CustomResourceColumnDefinition) -> Vec<String> {
    let is_wide = column.priority.is_some_and(|priority| priority > 0);
    let shown = if is_wide { "`kubectl get -o wide`" } else { "`kubectl get`" };
    vec![column.name.clone(), shown.to_owned(), column.description.clone().unwrap_or_default()]
}

impl Tables<'_> {
    /// Adds the fields of an object.
    fn children(&mut self, schema: &Value, path: &str) {
        let required: Vec<_> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            self.field(field, &format!("{path}.{name}"), required.contains(&name.as_str()));
        }
    }

    /// Adds a field with the fields in it.
    fn field(&mut self, schema: &Value, path: &str, is_required: bool) {
        let (inner, end) = match (&schema["items"], &schema["additionalProperties"]) {
            (Value::Object(_), _) => (&schema["items"], "[]"),
            (_, Value::Object(_)) => (&schema["additionalProperties"], ".<key>"),
            _ => (schema, ""),
        };
        let (text, values) = parts(description(schema));
        let range = range(schema, (!values.is_empty()).then(|| self.kind.to_lowercase()));
        let is_status = path.starts_with("status");
        let mut description = without_range(&text, schema);
        if is_status && let Some((before, _)) = description.rsplit_once("Written by ") {
            description = before.trim_end().to_owned();
        }
        let required = if is_required { ", required" } else { "" };
        let kind = format!("{}{required}", type_of(schema));
        let is_kubernetes = path.ends_with("conditions") || path.ends_with("matchExpressions");
        let shared = if is_kubernetes { None } else { self.shared(inner, path) };
        if let Some((_, path, kind)) = &shared {
            let anchor = format!("spec-of-a-{}", kind.to_lowercase());
            write!(description, " Fields as in [`{path}` of a {kind}](#{anchor}).")
                .expect("a String takes all text");
        }
        let writers = if is_status { self.writers(path) } else { String::new() };
        self.fields.push(Field { path: path.to_owned(), kind, range, description, writers });
        for (value, meaning) in values {
            self.value(path, value, &meaning);
        }
        if !is_kubernetes && shared.is_none() {
            self.children(inner, &format!("{path}{end}"));
        }
    }

    /// Adds a value of a field, or a condition.
    fn value(&mut self, path: &str, value: String, meaning: &str) {
        if path != "status.conditions" {
            self.values.push([format!("`{path}`"), value, meaning.to_owned()]);
            return;
        }
        let meaning = meaning.rsplit_once(" Written by ").map_or(meaning, |(before, _)| before);
        let writers = self.writers(&format!("status.conditions.{}", value.trim_matches('`')));
        self.conditions.push([value, meaning.to_owned(), writers]);
    }

    /// Returns the object of an earlier kind with the same fields. Remembers an object of a spec.
    fn shared(&mut self, schema: &Value, path: &str) -> Option<Known> {
        let fields = &schema["properties"];
        if count(fields) < MIN_SHARED_FIELDS || !path.starts_with("spec") {
            return None;
        }
        let found = self.known.iter().find(|(known, _, kind)| known == fields && kind != self.kind).cloned();
        if found.is_none() {
            self.known.push((fields.clone(), path.to_owned(), self.kind.to_owned()));
        }
        found
    }

    /// Returns the writers of a field of the status: those of its row, or of the rows in it.
    fn writers(&self, path: &str) -> String {
        let field = path.strip_prefix("status.").unwrap_or_default();
        if self.rows.is_empty() {
            return INFRASTRUCTURE_WRITER.to_owned();
        }
        let is_in = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let rows = self.rows.iter().filter(|row| is_in(field, row.field) || is_in(row.field, field));
        let mut titles: Vec<&str> = Vec::new();
        for title in rows.flat_map(|row| row.writers).map(|writer| writer.title()) {
            if !titles.contains(&title) {
                titles.push(title);
            }
        }
        assert!(!titles.is_empty(), "{} {path} has no writer", self.kind);
        titles.join("; ")
    }

    /// Returns the table of the fields, and starts another one.
    fn take_fields(&mut self, is_status: bool) -> String {
        let fields = std::mem::take(&mut self.fields).into_iter();
        let columns = ["field", "type", "default and range", "description", "writer"];
        let rows = fields.map(|field| {
            let mut cells = vec![format!("`{}`", field.path), field.kind, field.range, field.description];
            cells.extend(is_status.then_some(field.writers));
            cells
        });
        table(if is_status { &columns } else { &columns[..4] }, rows)
    }

    /// Returns the tables of values and conditions.
    fn rest(self) -> String {
        let mut text = String::new();
        for (title, columns, rows) in [
            ("Values", ["field", "value", "meaning"], self.values),
            ("Conditions", ["condition", "meaning", "writer"], self.conditions),
        ] {
            if !rows.is_empty() {
                write!(text, "\n### {title} of a {}\n\n", self.kind).expect("a String takes all text");
                text.push_str(&table(&columns, rows.into_iter().map(Vec::from)));
                if title == "Conditions" {
                    text.push_str("\n[Reasons](reasons.md) has the reasons of each condition.\n");
                }
            }
        }
        text
    }
}

/// Section about the kinds that upstream defines.
fn others() -> String {
    let mut text = String::from("\n## Kinds of Cluster API\n\n");
    text.push_str(
        "Upstream defines these kinds. Bedplate serves them with upstream's fields, and `kubectl explain` prints them:\n\
         `kubectl explain machines.spec --api-version=cluster.x-k8s.io/v1beta2`.\n\n",
    );
    let rows = [
        (core_definitions(), "[core](core-provider.md)"),
        (bootstrap_definitions(), "[bootstrap](bootstrap.md)"),
    ];
    let rows = rows.into_iter().flat_map(|(definitions, provider)| {
        definitions.into_iter().map(move |definition| {
            let served =
                definition.spec.versions.iter().find(|version| version.storage).map(|version| &version.name);
            let served = served.expect("one version is stored");
            vec![
                definition.spec.names.kind.clone(),
                format!("`{}/{served}`", definition.spec.group),
                provider.to_owned(),
            ]
        })
    });
    text.push_str(&table(&["kind", "API version", "provider"], rows));
    text
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// Splits a description into its text and the items of its list: value and meaning.
fn parts(description: &str) -> (String, Vec<(String, String)>) {
    let mut text: Vec<&str> = Vec::new();
    let mut items = Vec::new();
    for line in description.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("- ").and_then(|item| item.split_once(": ")) {
            Some((value, meaning)) => items.push((value.to_owned(), meaning.to_owned())),
            None => text.push(line),
        }
    }
    let text = text.join(" ");
    (text.strip_suffix(':').map(|text| format!("{text}.")).unwrap_or(text), items)
}

/// Returns the type of a field.
fn type_of(schema: &Value) -> String {
    let is_set = |name: &str| schema[name] == true;
    if is_set("x-kubernetes-int-or-string") {
        return "integer or string".to_owned();
    }
    if schema["items"].is_object() {
        return format!("list of {}", type_of(&schema["items"]));
    }
    if schema["additionalProperties"].is_object() {
        return format!("map of {}", type_of(&schema["additionalProperties"]));
    }
    if schema["format"] == "date-time" {
        return "time".to_owned();
    }
    let name = schema["type"].as_str().unwrap_or_default();
    let any = if is_set("x-kubernetes-preserve-unknown-fields") { " with any fields" } else { "" };
    format!("{name}{any}")
}

/// Returns default, values and bounds. `described`: kind whose table of values has the words of the enum.
fn range(schema: &Value, described: Option<String>) -> String {
    let mut parts = Vec::new();
    match &schema["default"] {
        Value::String(word) => parts.push(format!("default `{word}`")),
        value @ (Value::Bool(_) | Value::Number(_)) => parts.push(format!("default `{value}`")),
        _ => {}
    }
    let words: Vec<String> = schema["enum"].as_array().into_iter().flatten().map(word).collect();
    match described {
        Some(kind) if words.len() > MAX_LISTED_WORDS || words.is_empty() => {
            let name = if description(schema).starts_with("Conditions ") { "conditions" } else { "values" };
            parts.push(format!("[{name}](#{name}-of-a-{kind})"));
        }
        _ if !words.is_empty() => parts.push(words.join(", ")),
        _ => {}
    }
    parts.extend(bounds(schema).into_iter().next());
    parts.join("; ")
}

fn word(value: &Value) -> String {
    format!("`{}`", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Returns the bounds of a field in words: as the table has them, and further forms that a description may have.
fn bounds(schema: &Value) -> Vec<String> {
    let number = |name: &str| schema[name].as_f64().map(|number| format!("{number}"));
    let (low, high, unit) = if schema["items"].is_object() {
        (number("minItems"), number("maxItems"), " entries")
    } else if schema["additionalProperties"].is_object() {
        (number("minProperties"), number("maxProperties"), " entries")
    } else if schema["type"] == "string" && schema["format"] != "date-time" {
        (number("minLength"), number("maxLength"), " characters")
    } else {
        (number("minimum"), number("maximum"), "")
    };
    let high = high.filter(|high| *high != i32::MAX.to_string());
    let low = low.filter(|low| low != "0" || high.is_some());
    match (low, high) {
        (Some(low), Some(high)) if low == high => vec![format!("exactly {low}{unit}")],
        (Some(low), Some(high)) => {
            vec![format!("{low} to {high}{unit}"), format!("at most {high}{unit}"), format!("at most {high}")]
        }
        (None, Some(high)) => vec![format!("at most {high}{unit}"), format!("at most {high}")],
        (Some(low), None) => vec![format!("at least {low}{unit}"), format!("at least {low}")],
        (None, None) => Vec::new(),
    }
}

/// Removes the sentences that repeat the default or the bounds.
fn without_range(text: &str, schema: &Value) -> String {
    let default = match &schema["default"] {
        Value::String(word) => Some(format!("default: `{word}`")),
        value @ (Value::Bool(_) | Value::Number(_)) => Some(format!("default: {value}")),
        _ => None,
    };
    let mut repeated = bounds(schema);
    repeated.extend(default);
    let is_new = |sentence: &&str| {
        let sentence = sentence.strip_suffix('.').unwrap_or(sentence);
        !repeated.iter().any(|repeated| capital(repeated) == sentence)
    };
    let sentences: Vec<_> = text.split_inclusive(". ").map(str::trim_end).filter(is_new).collect();
    sentences.join(" ")
}

/// Number of the fields of an object and of the objects in it.
fn count(fields: &Value) -> usize {
    let fields = fields.as_object().into_iter().flatten();
    fields.map(|(_, field)| 1 + count(&field["properties"]) + count(&field["items"]["properties"])).sum()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn code(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Returns a table of Markdown.
fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        writeln!(text, "| {} |", cells.join(" | ")).expect("a String takes all text");
    }
    text
}
