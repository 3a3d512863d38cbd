//! Login: answers that do not belong to the step are ignored, refusals cost at most one round.

use super::*;

/// Place of the payload in a datagram outside of a session, behind the headers of RMCP and RMCP+.
const PAYLOAD: usize = 16;

/// The BMC's answer to the next datagram of the console.
fn answer(world: &mut World) -> Vec<u8> {
    let datagram = world.session.transmit().unwrap();
    world.bmc.receive(&mut world.machine, CONSOLE, &datagram, world.now).unwrap()
}

/// A world in which the console has sent the first datagram of a step, and the BMC's answer to it.
fn at(kind: PayloadKind) -> (World, Vec<u8>) {
    let mut world = World::good(Suite::Sha256);
    let datagram = until_sent(&mut world, kind);
    let answer = world.bmc.receive(&mut world.machine, CONSOLE, &datagram, world.now).unwrap();
    (world, answer)
}

const STEPS: [PayloadKind; 3] = [PayloadKind::OpenRequest, PayloadKind::Rakp1, PayloadKind::Rakp3];

#[test]
fn ipmi_13_18_answer_with_another_tag_or_console_id_is_ignored() {
    for step in STEPS {
        let tag = |payload: &mut [u8]| payload[0] ^= 0x80;
        let id = |payload: &mut [u8]| payload[4] ^= 1;
        // Only a refusal may have the ID 0.
        let no_id = |payload: &mut [u8]| payload[4..8].fill(0);
        let changes: [fn(&mut [u8]); 3] = [tag, id, no_id];
        for (change, apply) in (1..).zip(changes) {
            let (mut world, answer) = at(step);
            let mut wrong = answer.clone();
            apply(&mut wrong[PAYLOAD..]);
            world.session.receive(&wrong, world.now);
            let seen = (world.session.transmit(), world.session.event(), world.session.counters().ignored);
            assert_eq!(seen, (None, None, 1), "{step:?}, change {change}");
            world.session.receive(&answer, world.now);
            world.open();
            assert_eq!(world.events, [Event::Opened], "{step:?}, change {change}");
        }
    }
}

#[test]
fn ipmi_13_24_refusal_with_the_id_of_another_console_is_ignored() {
    for step in STEPS {
        for (id, counts) in [([9, 9, 9, 9], false), ([0; 4], true)] {
            let (mut world, answer) = at(step);
            // No resources, as an answer of the kind that the step has.
            let refusal = [&[answer[PAYLOAD], 1, 0, 0][..], &id].concat();
            let packet = header::encode_open(PayloadKind::from_number(answer[5]), &refusal).unwrap();
            let refusal = rmcp::ipmi(&packet);
            world.session.receive(&refusal, world.now);
            assert_eq!(world.session.is_over(), counts, "{step:?} {id:?}");
        }
    }
}

#[test]
fn ipmi_13_24_invalid_session_id_costs_one_new_round_after_open_session() {
    for status in [0x02, 0x08] {
        let named = Status::from_number(status).unwrap();
        for (kind, step) in [(PayloadKind::Rakp1, Step::Name), (PayloadKind::Rakp3, Step::Proof)] {
            let mut world = World::good(Suite::Sha256);
            for failed in [None, Some(Event::Failed(SessionError::Refused { step, status: named }))] {
                let datagram = until_sent(&mut world, kind);
                world.session.out.datagrams.push_front(datagram);
                refuse(&mut world, status);
                assert_eq!(world.session.event(), failed, "{step:?} {named}");
            }
            assert!(world.session.is_over());
        }
        let mut world = World::good(Suite::Sha256);
        let datagram = until_sent(&mut world, PayloadKind::OpenRequest);
        world.session.out.datagrams.push_front(datagram);
        refuse(&mut world, status);
        let refused = SessionError::Refused { step: Step::Open, status: named };
        assert_eq!(world.session.event(), Some(Event::Failed(refused)), "{named}");
    }
}

#[test]
fn ipmi_13_6_login_answer_marked_encrypted_or_authenticated_is_ignored() {
    for step in STEPS {
        for mark in [0x80, 0x40] {
            let (mut world, answer) = at(step);
            let mut marked = answer.clone();
            // The payload type, behind the header of RMCP and the authentication type.
            marked[5] |= mark;
            world.session.receive(&marked, world.now);
            assert_eq!((world.session.transmit(), world.session.counters().ignored), (None, 1), "{step:?}");
            world.session.receive(&answer, world.now);
            world.open();
            assert_eq!(world.events, [Event::Opened], "{step:?}");
        }
    }
}

#[test]
fn ipmi_22_13_capabilities_with_an_rmcp_plus_header_open_a_session() {
    let mut world = World::good(Suite::Sha256);
    let plain = answer(&mut world);
    let Ok(Rmcp::Ipmi(packet)) = rmcp::parse(&plain) else { panic!("{plain:?}") };
    let Ok(Packet::Plain(capabilities)) = header::parse(packet) else { panic!("{plain:?}") };
    let packet = header::encode_open(PayloadKind::Ipmi, capabilities.payload).unwrap();
    world.session.receive(&rmcp::ipmi(&packet), world.now);
    world.open();
    assert_eq!((&world.events[..], world.session.counters().ignored), (&[Event::Opened][..], 0));
}

#[test]
fn ipmi_6_12_4_nothing_is_sent_again_before_its_deadline() {
    for kind in STEPS {
        let mut world = World::good(Suite::Sha256);
        until_sent(&mut world, kind);
        world.session.elapse(world.session.deadline().unwrap() - Duration::from_millis(1));
        assert_eq!((world.session.transmit(), world.session.counters().repeated), (None, 0), "{kind:?}");
        world.session.elapse(world.session.deadline().unwrap());
        assert!(world.session.transmit().is_some(), "{kind:?}");
        assert_eq!(world.session.counters().repeated, 1, "{kind:?}");
    }
}

#[test]
fn ipmi_22_19_session_is_closed_although_rakp_4_is_lost() {
    let mut world = World::good(Suite::Sha256);
    let proof = until_sent(&mut world, PayloadKind::Rakp3);
    assert!(world.bmc.receive(&mut world.machine, CONSOLE, &proof, world.now).is_some());
    world.network.lost_to_console = true;
    world.until(|_| false);
    assert_eq!(world.events, [Event::Failed(SessionError::Silent { step: Step::Proof })]);
    assert_eq!(world.bmc.sessions(), 0);
}

#[test]
fn ipmi_22_19_close_completes_a_login_that_the_bmc_has_seen() {
    let mut world = World::good(Suite::Sha256);
    world.session.close(world.now);
    assert_eq!((world.session.event(), world.session.is_over()), (Some(Event::Closed), true));
    for step in STEPS {
        let (mut world, answer) = at(step);
        world.session.close(world.now);
        assert_eq!((world.session.event(), world.session.is_over()), (None, false), "{step:?}");
        world.session.receive(&answer, world.now);
        world.until(|event| *event == Event::Closed);
        assert_eq!(world.events, [Event::Opened, Event::Closed], "{step:?}");
        assert_eq!(world.bmc.sessions(), 0, "{step:?}");
    }
}

#[test]
fn ipmi_13_20_each_rakp_1_has_its_own_random_number() {
    let mut world = World::good(Suite::Sha256);
    let first = until_sent(&mut world, PayloadKind::Rakp1);
    world.session.elapse(world.session.deadline().unwrap());
    let second = world.session.transmit().unwrap();
    let number = |datagram: &[u8]| datagram[PAYLOAD + 8..PAYLOAD + 24].to_vec();
    assert_ne!(number(&first), number(&second));
}

#[test]
fn ipmi_13_18_error_names_the_step_that_was_refused_or_not_answered() {
    for (step, named) in [
        (Step::Capabilities, "Get Channel Authentication Capabilities"),
        (Step::Open, "Open Session"),
        (Step::Name, "RAKP message 1"),
        (Step::Proof, "RAKP message 3"),
        (Step::Privilege, "Set Session Privilege Level"),
    ] {
        assert!(SessionError::Silent { step }.to_string().ends_with(named), "{step:?}");
        let refused = SessionError::Refused { step, status: Status::Guid }.to_string();
        assert_eq!(refused, format!("the BMC rejected {named}: {}", Status::Guid));
    }
}
