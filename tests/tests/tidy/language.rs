//! Words and forms that the writing guide replaces, counted per folder. Called by the tidy tests.
//!
//! The counts of today are in `debt.toml`. A count may only fall.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::source::{Kind, Source, blank, functions, pieces};
use super::tree::Document;

/// Part of a file that a pattern is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Any line of a comment.
    Comment,
    /// First line of a comment block.
    CommentStart,
    /// Text literal of production code.
    Text,
    /// Line of a document.
    Document,
    /// Message of a log statement.
    Log,
    /// Name of a function in a test, with `fn ` before it.
    TestName,
    /// Line of production code, with its literals blanked.
    Code,
    /// Line of any code, with its literals blanked: names of items, fields and variables.
    Name,
}

use Part::{Code, Comment, CommentStart, Log, Name, TestName, Text};

const PROSE: &[Part] = &[Comment, Text, Part::Document];
const PROSE_AND_NAMES: &[Part] = &[Comment, Text, Part::Document, TestName];

/// A pattern of the guide: its name in `debt.toml`, its parts, what it finds, and lines that it does not count.
type Pattern = (&'static str, &'static [Part], &'static str, Option<&'static str>);

/// The patterns. The name says what to write instead.
const PATTERNS: &[Pattern] = &[
    ("again, not anew", PROSE_AND_NAMES, r"\banew\b|_anew(_|$)", None),
    ("started, not begun", PROSE_AND_NAMES, r"\bbegun\b|_begun(_|$)", None),
    (
        "user or operator, not nobody or somebody",
        PROSE,
        r"\b([Nn]obody|[Ss]omebody|[Ww]hoever|[Ww]homever)\b",
        Some(r#""nobody""#),
    ),
    ("reported, not told", PROSE_AND_NAMES, r"\btold\b|_told(_|$)", None),
    ("no phrasal give", PROSE, r"\b(given|gives?|gave) (up|back|free)\b", None),
    ("no phrasal take", PROSE, r"\b(taken|takes?|took) (back|on)\b", None),
    ("release or remove, not let go", PROSE, r"\b(let|lets|letting) go\b", None),
    ("its own, not the own", PROSE, r"\bthe own\b", None),
    ("should, not ought to", PROSE, r"\bought to\b", None),
    ("heartbeat or pulse, not sign of life", PROSE, r"\bsigns? of life\b", None),
    ("complete or unreachable, not whole or away", PROSE, r"\b(is|are|be|was|were) (whole|away)\b", None),
    ("must, not is to", PROSE, r"\b(is|are|was|were) to (be|have|run|go|get)\b", Some("goal is to")),
    (
        "negate the verb",
        PROSE,
        r"\b(is|are|was|were) no [a-z]",
        Some(r"[Tt]here (is|are|was|were) no|no (longer|more|less|such)"),
    ),
    ("pending, not awaits", PROSE, r"\bawait(s|ed)\b", None),
    ("otherwise, not else", PROSE, r"[,;] else\b", None),
    ("next to, not beside", PROSE, r"\bbeside\b", None),
    ("immediately or concurrently, not at once", PROSE, r"\bat once\b", None),
    ("a number, not so many or so long", PROSE, r"\bso (many|long|often|much)\b", None),
    ("error, not mistake", PROSE, r"\bmistakes?\b", None),
    ("skip or omit, not left out", PROSE, r"\bleft out\b", None),
    ("space, not blank", PROSE, r"\bblanks?\b", Some(r"blank (disk|line)|is blank|IfBlank")),
    ("continue, not go on", PROSE, r"\bgo(es)? on\b", None),
    ("check, not look at", PROSE, r"\blook(s|ed)? at\b", None),
    ("enroll with two l", PROSE_AND_NAMES, r"\b[Ee]nrol(s|ment|ments)?\b|_enrol(s|ment|ments)?(_|$)", None),
    (
        "American spelling",
        &[Comment, Text, Part::Document, TestName, Name],
        r"(?i)(behavi|col|hon|fav|neighb)our|licence|judgement|(label|level)led(\b|_)|(author|custom|initial|normal|optim|organ|recogn|serial|standard|summar)is(e|ing|ation)|\btowards\b",
        None,
    ),
    (
        "comment starts with a noun or a verb",
        &[CommentStart],
        r"^(What|Who|Whose|Whom|How|Why|Where|Whether|Until|Between|So|Of|Those|The same)\b",
        None,
    ),
    (
        "log message is an event",
        &[Log],
        r"^(it|its|they|this|that|what|who|how|whether|nobody|somebody|nothing|everything|not all|a|an|the)\b",
        None,
    ),
    ("log message has at most 72 characters, no period", &[Log], r"[.]$|^.{73,}$", None),
    ("log message says failed to", &[Log], r"\b(cannot|could not) be\b", None),
    (
        "constant names subject and unit",
        &[Code],
        r"const [A-Z]+: (Duration|SignedDuration|usize|[ui](16|32|64)|f64)\b",
        Some("PORT|COOKIE"),
    ),
    (
        "a name uses words of the guide",
        &[Name],
        r"(^|[^A-Za-z]|[a-z])(Told|Begun|Anew|Beside|Nobody|Somebody|Whoever|Awaited|Awaits|Mistakes?|GivenUp)([A-Z]|\b)|(\b|_)(told|begun|anew|beside|nobody|somebody|whoever|awaited|awaits|mistakes?|given_up|let_go)(_|\b)",
        None,
    ),
    ("test name is a claim", &[TestName], r"^fn (what|who|how|whether|nobody|whoever)_", None),
    ("test name has at most 70 characters", &[TestName], r"^fn \w{71,}", None),
];

/// A pattern, compiled.
struct Compiled {
    name: &'static str,
    parts: &'static [Part],
    find: Regex,
    unless: Option<Regex>,
}

static COMPILED: LazyLock<Vec<Compiled>> = LazyLock::new(|| {
    let regex = |text: &str| Regex::new(text).expect("a pattern is a regular expression");
    let compiled = |(name, parts, find, unless): &Pattern| Compiled {
        name,
        parts,
        find: regex(find),
        unless: unless.map(regex),
    };
    PATTERNS.iter().map(compiled).collect()
});

/// Counts per folder and pattern. A pattern without a hit is absent.
pub(crate) type Counts = BTreeMap<String, BTreeMap<String, usize>>;

/// A line that a pattern finds: folder, pattern, and the place for the reader.
pub(crate) struct Hit {
    pub(crate) folder: String,
    pub(crate) pattern: &'static str,
    pub(crate) place: String,
}

/// Hits in sources and documents, in the order of the files.
pub(crate) fn hits(sources: &[Source], documents: &[Document]) -> Vec<Hit> {
    let mut hits = Vec::new();
    // Files that list the words themselves.
    let lists = |path: &str| path.contains("/tidy/");
    for source in sources.iter().filter(|source| !lists(&source.path)) {
        for (number, part, line) in parts(source) {
            find(&source.path, number, part, &line, &mut hits);
        }
    }
    for document in documents {
        for (number, line) in (1..).zip(document.text.lines()) {
            find(&document.path, number, Part::Document, line, &mut hits);
        }
    }
    hits
}

/// Sums up hits per folder and pattern.
pub(crate) fn counts(hits: &[Hit]) -> Counts {
    let mut counts = Counts::new();
    for hit in hits {
        *counts.entry(hit.folder.clone()).or_default().entry(hit.pattern.to_owned()).or_default() += 1;
    }
    counts
}

/// Folders and patterns whose count differs from the debt: the pair, the debt, the count.
pub(crate) fn differences(debt: &Counts, counts: &Counts) -> Vec<(String, String, usize, usize)> {
    let mut pairs: Vec<(&String, &String)> = [debt, counts]
        .iter()
        .flat_map(|all| all.iter())
        .flat_map(|(f, of)| of.keys().map(move |p| (f, p)))
        .collect();
    pairs.sort();
    pairs.dedup();
    let count = |of: &Counts, (folder, pattern): (&String, &String)| {
        of.get(folder).and_then(|patterns| patterns.get(pattern)).copied().unwrap_or(0)
    };
    let differs = pairs.into_iter().filter(|pair| count(debt, *pair) != count(counts, *pair));
    differs.map(|pair| (pair.0.clone(), pair.1.clone(), count(debt, pair), count(counts, pair))).collect()
}

fn find(path: &str, number: usize, part: Part, line: &str, hits: &mut Vec<Hit>) {
    let (folder, _) = path.split_once('/').unwrap_or((path, ""));
    for pattern in COMPILED.iter().filter(|pattern| pattern.parts.contains(&part)) {
        let is_exception = pattern.unless.as_ref().is_some_and(|unless| unless.is_match(line));
        if pattern.find.is_match(line) && !is_exception {
            let place = format!("{path}:{number} {}", line.trim());
            hits.push(Hit { folder: folder.to_owned(), pattern: pattern.name, place });
        }
    }
}

/// The lines of a source by part, with their numbers. Literals and code of tests are not prose of the product.
fn parts(source: &Source) -> Vec<(usize, Part, String)> {
    let text = &source.text;
    let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let production = if source.is_test() { String::new() } else { source.production_text() };
    let is_production: Vec<bool> = production.lines().map(|line| !line.trim().is_empty()).collect();
    let mut found = Vec::new();
    let mut last_comment = None;
    for (piece, kind) in pieces(text) {
        let first = breaks.partition_point(|at| *at < piece.start) + 1;
        for (line, content) in (first..).zip(text[piece].lines()) {
            if kind == Kind::Comment {
                let content = content.trim_start_matches(['/', '!', '*']).trim();
                found.push((line, Comment, content.to_owned()));
                if last_comment != Some(line - 1) {
                    found.push((line, CommentStart, content.to_owned()));
                }
                last_comment = Some(line);
            } else if is_production.get(line - 1) == Some(&true) {
                found.push((line, Text, content.to_owned()));
            }
        }
    }
    if !source.is_test() {
        let code = source.production_code();
        found.extend((1..).zip(code.lines()).map(|(line, code)| (line, Code, code.to_owned())));
        found.extend(log_messages(&production, &blank(&production)).map(|(line, text)| (line, Log, text)));
    }
    let code = source.code();
    found.extend((1..).zip(code.lines()).map(|(line, code)| (line, Name, code.to_owned())));
    let tests = functions(&code).into_iter().filter(|function| is_test_function(&code, function.line));
    found.extend(tests.map(|function| (function.line, TestName, format!("fn {}", function.name))));
    found
}

/// True if one of the attributes above this line makes the function a test.
fn is_test_function(code: &str, line: usize) -> bool {
    let above: Vec<&str> = code.lines().take(line - 1).collect();
    let mut attributes = above.iter().rev().take_while(|line| line.trim_start().starts_with("#["));
    attributes.any(|line| line.contains("test"))
}

/// Messages of log statements: the literal of the macro that is an argument by itself, not the value of a field.
fn log_messages<'a>(text: &str, code: &'a str) -> impl Iterator<Item = (usize, String)> + 'a {
    static STATEMENT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\b(trace|debug|info|warn|error)!\(").expect("a regular expression"));
    // Blanking keeps the count of characters, not of bytes.
    let text: Vec<char> = text.chars().collect();
    STATEMENT.find_iter(code).filter_map(move |statement| {
        let line = code[..statement.start()].matches('\n').count() + 1;
        Some((line, first_argument_text(&text[code[..statement.end()].chars().count()..])?))
    })
}

/// The first text literal that is an argument by itself in a list of arguments, from behind its `(`.
fn first_argument_text(list: &[char]) -> Option<String> {
    let mut depth = 1_usize;
    let mut before = '(';
    let mut at = 0;
    while depth > 0 && at < list.len() {
        match list[at] {
            '"' => {
                let end = (at + 1..list.len()).find(|i| list[*i] == '"' && list[i - 1] != '\\')?;
                if depth == 1 && matches!(before, '(' | ',') {
                    return Some(list[at + 1..end].iter().collect());
                }
                at = end;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if !list[at].is_whitespace() {
            before = list[at];
        }
        at += 1;
    }
    None
}

#[test]
fn words_are_found_in_the_parts_that_they_are_banned_in() {
    let text = "//! What it does anew.\n//! And more.\nconst MOST: usize = 1;\nfn a() {\n    // Nobody \"told\" it.\n    info!(name = \"the own\", \"the own {}\", x(\"at once\"));\n}\n#[test]\nfn what_is_told() {\n    \"begun\";\n}\n";
    let source = Source { path: "x/src/y.rs".into(), text: text.into(), test_only: false };
    let found: Vec<String> = hits(&[source], &[])
        .iter()
        .map(|hit| format!("{} {}", hit.place.split(' ').next().expect("a place"), hit.pattern))
        .collect();
    let expected = [
        "x/src/y.rs:1 again, not anew",
        "x/src/y.rs:1 comment starts with a noun or a verb",
        "x/src/y.rs:5 user or operator, not nobody or somebody",
        "x/src/y.rs:5 reported, not told",
        "x/src/y.rs:6 its own, not the own",
        "x/src/y.rs:6 its own, not the own",
        "x/src/y.rs:6 immediately or concurrently, not at once",
        "x/src/y.rs:10 started, not begun",
        "x/src/y.rs:3 constant names subject and unit",
        "x/src/y.rs:6 log message is an event",
        "x/src/y.rs:9 a name uses words of the guide",
        "x/src/y.rs:9 reported, not told",
        "x/src/y.rs:9 test name is a claim",
    ];
    assert_eq!(found, expected);
}

#[test]
fn debt_differs_in_both_directions() {
    let counts = |number: usize| {
        Counts::from([("x".to_owned(), BTreeMap::from([("again, not anew".to_owned(), number)]))])
    };
    assert!(differences(&counts(2), &counts(2)).is_empty());
    let both = [differences(&counts(2), &counts(3)), differences(&counts(2), &Counts::new())];
    let numbers: Vec<_> = both.iter().map(|found| (found[0].2, found[0].3)).collect();
    assert_eq!(numbers, [(2, 3), (2, 0)]);
}
