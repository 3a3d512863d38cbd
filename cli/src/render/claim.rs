//! Hosts of pools and their claims, as text.
//!
//! Pure: the time is an argument. Texts from outside are cleaned here or by the table.

use super::table::Table;
use super::{Look, Paint, age, clean, machine, text};
use crate::standing::{ClaimantSeen, Grant, HostClaim, Standing};

/// Returns one line for each host, by name.
pub(crate) fn claims(hosts: &[HostClaim], look: Look) -> String {
    if hosts.is_empty() {
        return "no Machine is in a pool; see docs/guides/claims.md\n".to_owned();
    }
    let mut table = Table::new(&["MACHINE", "STATE", "SINCE", "GRANTED", "CLUSTER", "CLAIMANT", "NOTE"]);
    for host in hosts {
        table.row(vec![
            (host.machine.clone(), None),
            (state(host), Some(paint(host))),
            (text(host.since.map(|since| age(since, look))), None),
            (text(host.grant.map(|grant| grant_word(grant).to_owned())), None),
            (text(host.cluster.clone()), None),
            (text(host.claimant.clone()), None),
            (host.note.clone().unwrap_or_default(), None),
        ]);
    }
    table.print(look)
}

const fn grant_word(grant: Grant) -> &'static str {
    match grant {
        Grant::Granted => "yes",
        Grant::Pending => "no",
    }
}

/// Returns the state of a host, and whether its claim is being deleted.
fn state(host: &HostClaim) -> String {
    if host.deleting { format!("{}, deleting", host.state) } else { host.state.clone() }
}

fn paint(host: &HostClaim) -> Paint {
    match host.state.as_str() {
        "Joined" if !host.deleting => Paint::Good,
        "Failed" | "ClaimMissing" => Paint::Bad,
        "Free" | "Released" => Paint::Faint,
        _ => Paint::Waiting,
    }
}

/// Returns one host: claim, record of the host, version, conditions, disagreements, and next steps.
pub(crate) fn claim(standing: &Standing, look: Look) -> String {
    let heading = |name: &str| look.paint(Paint::Heading, name);
    let host = &standing.host;
    let mut printed = format!("{}\n", heading(&format!("Machine {}", clean(&host.machine))));
    printed.push_str(&summary(standing, look));
    if host.grant.is_some() {
        printed.push_str(&format!("\n{}\n", heading("Conditions of the MachineClaim")));
        printed.push_str(&machine::conditions(&standing.conditions, look));
    }
    for (name, lines) in [("Disagreements", &standing.differences), ("Next", &standing.next)] {
        if lines.is_empty() {
            continue;
        }
        printed.push_str(&format!("\n{}\n", heading(name)));
        lines.iter().for_each(|line| printed.push_str(&format!("  {}\n", clean(line))));
    }
    printed
}

fn summary(standing: &Standing, look: Look) -> String {
    let host = &standing.host;
    let mut table = Table::indented(2);
    let mut line = |name: &str, value: Option<String>, paint: Option<Paint>| {
        if let Some(value) = value {
            table.row(vec![(name.to_owned(), Some(Paint::Faint)), (value, paint)]);
        }
    };
    let since = host.since.map(|since| format!(" for {}", age(since, look))).unwrap_or_default();
    let deleting = if host.deleting { ", the claim is being deleted" } else { "" };
    line("State", Some(format!("{}{since}{deleting}", host.state)), Some(paint(host)));
    line("Note", host.note.clone(), None);
    let claimant =
        host.claimant.as_ref().map(|name| format!("{name}{}", claimant(&standing.claimant_object)));
    line("Claimant", claimant, None);
    line("Cluster", host.cluster.clone(), None);
    line("Node", standing.node.clone(), None);
    line("Claim", host.provider_id.clone(), None);
    line("Granted", host.grant.map(|grant| grant_word(grant).to_owned()), None);
    line("Version", Some(standing.version.clone().unwrap_or_else(|| "none is selected".to_owned())), None);
    let record = standing.record.as_ref().map(|record| {
        format!(
            "{:?} for {}, {} of {}",
            record.state,
            age(record.since.0, look),
            record.provider_id,
            record.claimant
        )
    });
    line("Record of the host", Some(record.unwrap_or_else(|| "none".to_owned())), None);
    let heard = standing.heard.map(|heard| format!("heard {} ago", age(heard, look)));
    line("Agent", Some(heard.unwrap_or_else(|| "not heard yet".to_owned())), None);
    line("Reported", standing.reported.clone(), None);
    table.print(look)
}

fn claimant(seen: &ClaimantSeen) -> String {
    match seen {
        ClaimantSeen::None => String::new(),
        ClaimantSeen::Present { deleting: false, .. } => ", which exists".to_owned(),
        ClaimantSeen::Present { deleting: true, .. } => ", which is being deleted".to_owned(),
        ClaimantSeen::Absent => ", which does not exist".to_owned(),
        ClaimantSeen::Unreadable { why } => format!(", which cannot be read: {why}"),
    }
}
