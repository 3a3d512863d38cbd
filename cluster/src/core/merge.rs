//! Pure: several conditions merged into one, as upstream merges them.
//!
//! A summary has the conditions of one object, an aggregate has one condition of several objects.
//!
//! Issues decide before unknown states. Messages are bounded: an aggregate shows three of them, each with three names.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Maximum number of messages of an aggregate.
const MAX_MESSAGES: usize = 3;
/// Maximum number of names before one message.
const MAX_NAMES: usize = 3;

/// Result of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Merged {
    /// A condition has an issue.
    Issue,
    /// No condition has an issue, and the state of one is not known.
    Unknown,
    /// All conditions have their normal state.
    Normal,
}

/// Condition of an object, for its summary.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Type of the condition.
    pub type_: &'a str,
    /// The condition. None: not reported yet.
    pub condition: Option<&'a Condition>,
    /// True if the normal state is False.
    pub is_negative: bool,
    /// True if the condition is never an issue.
    pub is_info: bool,
}

/// Object with a condition, for an aggregate.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// Kind of the object.
    pub kind: &'a str,
    /// Name of the object.
    pub name: &'a str,
    /// The condition. None: not reported yet.
    pub condition: Option<&'a Condition>,
    /// True if messages about the object precede the others.
    pub is_first: bool,
}

/// Merges conditions of one object. The message has a line for each issue and unknown state, in the order of the parts.
pub fn summary(parts: &[Part<'_>]) -> (Merged, String) {
    let judged = parts.iter().map(|part| {
        let merged = if part.is_info { Merged::Normal } else { judge(part.condition, part.is_negative) };
        (part, merged)
    });
    let judged: Vec<_> = judged.collect();
    let merged = judged.iter().map(|(_, merged)| *merged).min().unwrap_or(Merged::Normal);
    let lines = judged.iter().filter_map(|(part, own)| {
        let message = text(part.condition, part.type_);
        if *own != Merged::Normal {
            let reason = part.condition.map(|condition| condition.reason.as_str()).unwrap_or_default();
            let shown = if message.is_empty() { reason } else { &message };
            return Some(format!("* {}:{}", part.type_, indented(shown)));
        }
        (merged == Merged::Normal && !message.is_empty() && part.condition.is_some())
            .then(|| format!("* {}:{}", part.type_, indented(&message)))
    });
    (merged, lines.collect::<Vec<_>>().join("\n"))
}

/// Merges one condition of several objects.
pub fn aggregate(type_: &str, is_negative: bool, items: &[Item<'_>]) -> (Merged, String) {
    let judged: Vec<_> = items.iter().map(|item| (item, judge(item.condition, is_negative))).collect();
    let merged = judged.iter().map(|(_, merged)| *merged).min().unwrap_or(Merged::Normal);
    let mut groups: BTreeMap<(&str, String), Group<'_>> = BTreeMap::new();
    for (item, own) in judged {
        let message = text(item.condition, type_);
        let is_shown = if merged == Merged::Normal { !message.is_empty() } else { own != Merged::Normal };
        if !is_shown {
            continue;
        }
        let group = groups.entry((item.kind, message)).or_insert_with(|| Group::new(own));
        group.merged = group.merged.min(own);
        group.is_first |= item.is_first;
        group.names.push((!item.is_first, item.name));
    }
    (merged, lines(groups))
}

struct Group<'a> {
    merged: Merged,
    is_first: bool,
    names: Vec<(bool, &'a str)>,
}

impl Group<'_> {
    fn new(merged: Merged) -> Self {
        Self { merged, is_first: false, names: Vec::new() }
    }
}

fn lines(groups: BTreeMap<(&str, String), Group<'_>>) -> String {
    let mut groups: Vec<_> = groups.into_iter().collect();
    for (_, group) in &mut groups {
        group.names.sort_unstable();
    }
    groups.sort_by(|((kind, _), group), ((other_kind, _), other)| {
        let key = |group: &Group<'_>| (!group.is_first, group.merged, Reverse(group.names.len()));
        (kind, key(group), &group.names).cmp(&(other_kind, key(other), &other.names))
    });
    let mut others: BTreeMap<(&str, Merged), usize> = BTreeMap::new();
    for ((kind, _), group) in groups.iter().skip(MAX_MESSAGES) {
        *others.entry((kind, group.merged)).or_default() += group.names.len();
    }
    let shown = groups.iter().take(MAX_MESSAGES).map(|((kind, message), group)| {
        let names: Vec<&str> = group.names.iter().map(|(_, name)| *name).collect();
        format!("* {}:{}", listed(kind, &names, MAX_NAMES), indented(message))
    });
    let others = others.into_iter().map(|((kind, merged), count)| {
        let plural = if count == 1 { "" } else { "s" };
        let what = match merged {
            Merged::Issue => "with other issues",
            Merged::Unknown => "with status unknown",
            Merged::Normal => "with additional info",
        };
        format!("And {count} {kind}{plural} {what}")
    });
    shown.chain(others).collect::<Vec<_>>().join("\n")
}

/// Returns a kind with the first names of its objects, and the number of the others.
pub fn listed(kind: &str, names: &[&str], limit: usize) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let shown = names.iter().take(limit).copied().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(limit);
    let more = if more == 0 { String::new() } else { format!(", ... ({more} more)") };
    format!("{kind}{plural} {shown}{more}")
}

fn judge(condition: Option<&Condition>, is_negative: bool) -> Merged {
    match condition.map(|condition| (condition.status.as_str(), is_negative)) {
        Some(("True", false) | ("False", true)) => Merged::Normal,
        Some(("False", false) | ("True", true)) => Merged::Issue,
        Some(_) | None => Merged::Unknown,
    }
}

fn text(condition: Option<&Condition>, type_: &str) -> String {
    condition
        .map_or_else(|| format!("Condition {type_} not yet reported"), |condition| condition.message.clone())
}

/// Returns a text after its title. A text of several lines starts on a new one.
fn indented(text: &str) -> String {
    let is_item = |line: &str| line.trim_start().starts_with("* ");
    if !text.contains('\n') && !is_item(text) {
        return format!(" {text}");
    }
    let has_text = text.lines().any(|line| !is_item(line));
    let prefixed = text.lines().map(|line| match (has_text, is_item(line)) {
        (true, false) => format!("\n  * {line}"),
        (true, true) => format!("\n    {line}"),
        (false, _) => format!("\n  {line}"),
    });
    prefixed.collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn condition(status: &str, message: &str) -> Condition {
        Condition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            reason: "R".to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }
    }

    fn part<'a>(type_: &'a str, condition: Option<&'a Condition>, is_negative: bool) -> Part<'a> {
        Part { type_, condition, is_negative, is_info: false }
    }

    #[test]
    fn summary_shows_issues_and_unknown_states_only() {
        let (good, bad) = (condition("True", "fine"), condition("False", "broken"));
        let (merged, message) =
            summary(&[part("A", Some(&good), false), part("B", Some(&bad), false), part("C", None, false)]);
        assert_eq!(merged, Merged::Issue);
        assert_eq!(message, "* B: broken\n* C: Condition C not yet reported");
        let (merged, message) = summary(&[part("A", Some(&good), false), part("C", None, false)]);
        assert_eq!((merged, message.as_str()), (Merged::Unknown, "* C: Condition C not yet reported"));
        let (merged, message) =
            summary(&[part("A", Some(&good), false), part("B", Some(&condition("False", "")), true)]);
        assert_eq!((merged, message.as_str()), (Merged::Normal, "* A: fine"));
    }

    #[test]
    fn summary_uses_the_reason_if_there_is_no_message() {
        let bad = condition("True", "");
        assert_eq!(summary(&[part("A", Some(&bad), true)]), (Merged::Issue, "* A: R".to_owned()));
        let info = Part { is_info: true, ..part("A", Some(&bad), true) };
        assert_eq!(summary(&[info]), (Merged::Normal, String::new()));
    }

    #[test]
    fn aggregate_groups_equal_messages_and_bounds_them() {
        let (bad, good) = (condition("False", "broken"), condition("True", ""));
        let names: Vec<String> = (0..5).map(|number| format!("m{number}")).collect();
        let item = |name, condition, is_first| Item { kind: "Machine", name, condition, is_first };
        let mut items: Vec<_> = names.iter().map(|name| item(name, Some(&bad), false)).collect();
        items.push(item("good", Some(&good), false));
        items.push(item("new", None, true));
        let (merged, message) = aggregate("Ready", false, &items);
        assert_eq!(merged, Merged::Issue);
        let expected =
            "* Machine new: Condition Ready not yet reported\n* Machines m0, m1, m2, ... (2 more): broken";
        assert_eq!(message, expected);
        let others: Vec<_> = (0..5).map(|number| condition("False", &format!("e{number}"))).collect();
        let items: Vec<_> =
            names.iter().zip(&others).map(|(name, other)| item(name, Some(other), false)).collect();
        let (_, message) = aggregate("Ready", false, &items);
        assert_eq!(message.lines().count(), 4);
        assert!(message.ends_with("And 2 Machines with other issues"), "{message}");
    }

    #[test]
    fn aggregate_of_a_negative_condition_is_an_issue_if_true() {
        let (scaling, still) = (condition("True", "1 of 3"), condition("False", ""));
        let item =
            |name, condition| Item { kind: "MachineSet", name, condition: Some(condition), is_first: false };
        let (merged, message) = aggregate("ScalingUp", true, &[item("a", &scaling), item("b", &still)]);
        assert_eq!((merged, message.as_str()), (Merged::Issue, "* MachineSet a: 1 of 3"));
        assert_eq!(aggregate("ScalingUp", true, &[item("b", &still)]), (Merged::Normal, String::new()));
    }

    #[test]
    fn lines_of_a_message_are_indented() {
        assert_eq!(indented("text"), " text");
        assert_eq!(indented("* a: b"), "\n  * a: b");
        assert_eq!(indented("text\n* a"), "\n  * text\n    * a");
    }
}
