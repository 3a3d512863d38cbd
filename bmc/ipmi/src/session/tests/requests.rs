//! Requests, serial over LAN and time in an open session.

use super::*;

/// A world with an open session.
fn opened() -> World {
    let mut world = World::good(Suite::Sha256);
    world.open();
    world
}

#[test]
fn ipmi_6_8_each_privilege_is_found_by_its_number_and_no_other() {
    for privilege in [Privilege::User, Privilege::Operator, Privilege::Administrator] {
        assert_eq!(Privilege::from_number(privilege.number()), Some(privilege));
    }
    for number in [0, 1, 5, 15] {
        assert_eq!(Privilege::from_number(number), None, "{number}");
    }
}

#[test]
fn a_request_of_the_maximum_length_is_sent_and_a_longer_one_is_refused() {
    for (length, refused) in
        [(MOST_DATA - 1, None), (MOST_DATA, None), (MOST_DATA + 1, Some(RequestError::TooLong))]
    {
        let mut world = opened();
        let answer = world.ask(Request::new(APPLICATION, 1, &vec![7; length]));
        assert_eq!(answer.as_ref().err(), refused.as_ref(), "{length}");
        assert_eq!(answer.map_or(length, |answer| answer.data.len()), length);
    }
}

#[test]
fn ipmi_15_serial_payloads_are_sent_in_an_open_session_only() {
    let mut world = World::good(Suite::Sha256);
    assert!(world.session.transmit().is_some());
    world.session.serial(&[1, 0, 0, 0]);
    assert_eq!(world.session.transmit(), None);
    let mut world = opened();
    world.session.serial(&[1, 0, 0, 0]);
    let datagram = world.session.transmit().unwrap();
    let Ok(Rmcp::Ipmi(packet)) = rmcp::parse(&datagram) else { panic!("{datagram:?}") };
    let Ok(Packet::Plus(plus)) = header::parse(packet) else { panic!("{datagram:?}") };
    assert_eq!((plus.kind, plus.encrypted, plus.authenticated), (PayloadKind::Sol, true, true));
}

#[test]
fn a_canceled_request_leaves_the_requests_before_and_after_it() {
    for canceled in 0..3 {
        let mut world = opened();
        let tickets = [0, 1, 2].map(|octet| {
            let request = Request::new(APPLICATION, 1, &[octet]);
            world.session.request(request, world.now)
        });
        world.session.cancel(tickets[canceled]);
        world.ask(device_id()).unwrap();
        let answered: Vec<Ticket> = world.events.iter().filter_map(ticket).collect();
        let expected: Vec<Ticket> = tickets.into_iter().filter(|is| *is != tickets[canceled]).collect();
        assert_eq!(answered[..2], expected, "{canceled}");
        assert_eq!(answered.len(), 3, "{canceled}");
    }
}

/// The ticket of a request that was answered.
fn ticket(event: &Event) -> Option<Ticket> {
    match event {
        Event::Answer(ticket, Ok(_)) => Some(*ticket),
        _ => None,
    }
}

#[test]
fn ipmi_6_12_4_request_is_not_sent_again_before_its_deadline() {
    let mut world = opened();
    world.session.request(device_id(), world.now);
    assert!(world.session.transmit().is_some());
    let deadline = world.session.deadline().unwrap();
    world.session.elapse(deadline - Duration::from_millis(1));
    assert_eq!((world.session.transmit(), world.session.counters().repeated), (None, 0));
    world.session.elapse(deadline);
    assert!(world.session.transmit().is_some());
    assert_eq!(world.session.counters().repeated, 1);
}

#[test]
fn ipmi_6_12_15_silent_session_is_kept_by_one_request_when_due() {
    let every = Duration::from_secs(30);
    let console = Settings { keep_alive: Some(every), ..settings(Suite::Sha256) };
    let mut world = World::new(console, managed_settings(), Network::default(), 1);
    world.open();
    for _ in 0..3 {
        let due = world.session.deadline().unwrap();
        assert_eq!(due, world.now + every);
        world.session.elapse(due - Duration::from_millis(1));
        assert_eq!(world.session.transmit(), None);
        world.now = due;
        let before = world.session.counters().sent;
        world.session.elapse(due);
        while world.step() {}
        assert_eq!(world.session.counters().sent - before, 1);
    }
    assert_eq!(world.events, [Event::Opened]);
}

#[test]
fn ipmi_22_19_lost_session_is_closed_at_the_bmc() {
    let mut world = opened();
    world.network.lost_to_console = true;
    assert_eq!(world.ask(device_id()), Err(RequestError::Unanswered));
    assert_eq!(world.events.last(), Some(&Event::Failed(SessionError::Lost)));
    assert_eq!(world.bmc.sessions(), 0);
}

#[test]
fn ipmi_13_6_datagrams_of_another_kind_or_session_are_ignored_and_counted() {
    let mut world = opened();
    world.session.request(device_id(), world.now);
    let datagram = world.session.transmit().unwrap();
    let answer = world.bmc.receive(&mut world.machine, CONSOLE, &datagram, world.now).unwrap();
    let mut session = answer.clone();
    // The session ID, behind the header of RMCP, the authentication type and the payload type.
    session[6] ^= 1;
    let plain = rmcp::ipmi(&header::encode_plain(&[0; 8]).unwrap());
    let open = rmcp::ipmi(&header::encode_open(PayloadKind::Rakp2, &[0; 8]).unwrap());
    for (ignored, datagram) in (1..).zip([&session[..], &plain, &open, &rmcp::pong(0), &answer[..12], &[]]) {
        world.session.receive(datagram, world.now);
        let counters = world.session.counters();
        assert_eq!((counters.ignored, counters.forged, counters.replayed), (ignored, 0, 0));
    }
    world.session.receive(&answer, world.now);
    assert!(matches!(world.session.event(), Some(Event::Answer(_, Ok(_)))));
}
