//! Diagnoses of Machines as text.
//!
//! Pure: the time is an argument.

use bedplate_api::reason::Actor;

use super::{Look, Paint, age, clean};
use crate::diagnosis::Diagnosis;

/// Returns a paragraph for each Machine, in this order.
pub(crate) fn diagnosis(all: &[Diagnosis], look: Look) -> String {
    if all.is_empty() {
        return "no Machines; see docs/guides/machine.md\n".to_owned();
    }
    all.iter().map(|one| paragraph(one, look)).collect()
}

fn paragraph(one: &Diagnosis, look: Look) -> String {
    let since = one.since.map(|since| format!(" for {}", age(since, look))).unwrap_or_default();
    let name = look.paint(Paint::Heading, &clean(&one.machine));
    let (state, paint) = match one.from {
        None => (format!("ready{since}"), Paint::Good),
        Some(Actor::User) => (format!("waits for a user{since}"), Paint::Bad),
        Some(actor) => (format!("waits for {}{since}", who(actor)), Paint::Waiting),
    };
    let mut text = format!("{name}  {}\n", look.paint(paint, &state));
    let mut line = |name: &str, what: &str| text.push_str(&format!("    {name:<6}{}\n", clean(what)));
    let reason = if one.what.contains(&one.reason) || one.from.is_none() {
        String::new()
    } else {
        format!(" ({})", one.reason)
    };
    line("what", &format!("{}{reason}", one.what));
    if !one.next.is_empty() {
        line("next", &one.next);
    }
    for also in &one.also {
        line("also", also);
    }
    text
}

fn who(actor: Actor) -> &'static str {
    match actor {
        Actor::Pxed => "pxed",
        Actor::Controller => "bedplate-controller (pxed if standalone)",
        Actor::Agent => "its agent",
        Actor::User => "a user",
        Actor::Bmc => "its BMC",
        Actor::Registry => "the registry",
        Actor::Host => "the machine itself",
        Actor::Cluster => "the cluster",
        Actor::Other => "another program",
    }
}
