//! Queries name servers, one after the other, until one has an answer.
//!
//! Over UDP without EDNS, and over TCP if an answer does not fit. Blocking; every wait is bounded. Called by `resolver`.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::wire::{Answer, Kind, decode_answer, encode_question};

/// Time to wait for the second address family after the first answer. Some
/// servers never answer for one of them.
const SECOND_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Result of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// Addresses; at least one.
    Found(Vec<IpAddr>),
    /// The name does not exist.
    Absent,
    /// A server answered without a result: it may know another name.
    Refused,
    /// No server has answered.
    Silent,
}

/// Asks for addresses of these kinds, which come in their order.
pub(super) fn ask(
    name: &str,
    kinds: &[Kind],
    servers: &[SocketAddr],
    attempts: u32,
    timeout: Duration,
) -> Asked {
    let mut last = Asked::Silent;
    for server in (0..attempts).flat_map(|_| servers) {
        match ask_one(name, kinds, *server, timeout) {
            Ok(said @ (Asked::Found(_) | Asked::Absent)) => return said,
            Ok(Asked::Refused) => last = Asked::Refused,
            Ok(Asked::Silent) => {}
            Err(error) => tracing::debug!(%server, name, %error, "name server query failed"),
        }
    }
    last
}

/// Queries one server.
fn ask_one(name: &str, kinds: &[Kind], server: SocketAddr, timeout: Duration) -> io::Result<Asked> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A fresh port of the kernel's choosing for each try; the connected socket takes answers of this server only.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    let first: u16 = rand::random();
    let mut questions = Vec::with_capacity(kinds.len());
    for (number, kind) in (0_u16..).zip(kinds) {
        // An invalid name has no address.
        let Some(question) = encode_question(first.wrapping_add(number), name, *kind) else {
            return Ok(Asked::Absent);
        };
        socket.send(&question)?;
        questions.push(question);
    }
    let mut answers: Vec<Option<Answer>> = vec![None; kinds.len()];
    let mut deadline = Instant::now() + timeout;
    while answers.iter().any(Option::is_none) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left))?;
        let mut buffer = [0; 1500];
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                break;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        for ((answer, question), kind) in
            answers.iter_mut().zip(&questions).zip(kinds).filter(|((answer, _), _)| answer.is_none())
        {
            *answer = decode_answer(question, *kind, buffer.get(..length).unwrap_or_default());
        }
        if answers.iter().flatten().any(|answer| matches!(answer, Answer::Found(_))) {
            deadline = deadline.min(Instant::now() + SECOND_ANSWER_TIMEOUT);
        }
    }
    let mut asked = sum(&answers);
    let is_cut = |answer: &Option<Answer>| *answer == Some(Answer::Cut);
    if asked == Asked::Refused && answers.iter().any(is_cut) {
        for ((answer, question), kind) in answers.iter_mut().zip(&questions).zip(kinds) {
            if is_cut(answer) {
                *answer = ask_over_tcp(question, *kind, server, timeout)?;
            }
        }
        asked = sum(&answers);
    }
    Ok(asked)
}

/// Asks one question of a server over TCP (RFC 7766), within `timeout`.
fn ask_over_tcp(
    question: &[u8],
    kind: Kind,
    server: SocketAddr,
    timeout: Duration,
) -> io::Result<Option<Answer>> {
    let deadline = Instant::now() + timeout;
    let mut stream = TcpStream::connect_timeout(&server, timeout)?;
    stream.set_write_timeout(Some(timeout))?;
    // Both messages begin with their length.
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], question].concat())?;
    let mut bytes = Vec::new();
    loop {
        if let Some((length, answer)) = bytes.split_first_chunk()
            && let Some(answer) = answer.get(..usize::from(u16::from_be_bytes(*length)))
        {
            return Ok(decode_answer(question, kind, answer));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => bytes.extend(buffer.iter().take(length)),
        }
    }
}

/// Combines the answers: all addresses that were found; absent if all answers
/// say so; otherwise refused if any server answered.
fn sum(answers: &[Option<Answer>]) -> Asked {
    let all_absent = answers.iter().all(|answer| *answer == Some(Answer::Absent));
    let said = answers.iter().any(Option::is_some);
    let found: Vec<IpAddr> = answers
        .iter()
        .flatten()
        .flat_map(|answer| match answer {
            Answer::Found(addresses) => &addresses[..],
            Answer::Absent | Answer::Refused | Answer::Cut => &[],
        })
        .copied()
        .collect();
    match (found.is_empty(), all_absent, said) {
        (false, ..) => Asked::Found(found),
        (true, true, _) => Asked::Absent,
        (true, false, true) => Asked::Refused,
        (true, false, false) => Asked::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolver::configuration::Configuration;
    use crate::resolver::find;

    const QUICK: Duration = Duration::from_millis(200);

    /// Runs a server that answers by `said`, for name and kind (1 or 28):
    /// addresses, or an error code; none: it is silent.
    fn server(
        at: &str,
        said: impl Fn(&str, u16) -> Option<Result<Vec<IpAddr>, u8>> + Send + 'static,
    ) -> SocketAddr {
        let socket = UdpSocket::bind((at, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                let question = &buffer[..length];
                let kind = u16::from_be_bytes([question[length - 4], question[length - 3]]);
                let mut labels = Vec::new();
                let mut place = 12;
                while question[place] != 0 {
                    let end = place + 1 + usize::from(question[place]);
                    labels.push(String::from_utf8_lossy(&question[place + 1..end]).into_owned());
                    place = end;
                }
                let Some(said) = said(&labels.join("."), kind) else { continue };
                let mut answer = question.to_vec();
                (answer[2], answer[3]) = (0x81, 0x80 | said.as_ref().err().copied().unwrap_or(0));
                for address in said.unwrap_or_default() {
                    answer[7] += 1;
                    let octets = match address {
                        IpAddr::V4(address) => address.octets().to_vec(),
                        IpAddr::V6(address) => address.octets().to_vec(),
                    };
                    answer.extend([0xc0, 12, 0, u8::try_from(kind).unwrap(), 0, 1, 0, 0, 0, 9, 0]);
                    answer.push(u8::try_from(octets.len()).unwrap());
                    answer.extend(octets);
                }
                let _ = socket.send_to(&answer, peer);
            }
        });
        address
    }

    fn configuration(servers: Vec<SocketAddr>) -> Configuration {
        Configuration {
            servers,
            search: vec!["rack.example".to_owned()],
            ndots: 1,
            timeout: QUICK,
            attempts: 2,
        }
    }

    fn v6() -> IpAddr {
        "fd00::7".parse().unwrap()
    }

    #[test]
    fn name_with_ipv6_only_is_found_at_an_ipv6_server_behind_broken_ones() {
        let silent = server("127.0.0.1", |_, _| None);
        let broken = server("127.0.0.1", |_, _| Some(Err(2)));
        let knows = server("::1", |_, kind| Some(Ok(if kind == 28 { vec![v6()] } else { Vec::new() })));
        let found = find("api.rack.example", &configuration(vec![silent, broken, knows])).unwrap();
        assert_eq!(found, [v6()]);
    }

    #[test]
    fn ipv4_comes_first_and_missing_ipv6_answers_do_not_delay() {
        let v4: IpAddr = [10, 7, 0, 1].into();
        let both = server("127.0.0.1", move |_, kind| Some(Ok(vec![if kind == 1 { v4 } else { v6() }])));
        assert_eq!(find("api.x", &configuration(vec![both])).unwrap(), [v4, v6()]);
        let half = server("127.0.0.1", move |_, kind| (kind == 1).then(|| Ok(vec![v4])));
        assert_eq!(find("api.x", &configuration(vec![half])).unwrap(), [v4]);
    }

    #[test]
    fn short_name_uses_the_search_list_and_absent_differs_from_silent() {
        let v4: IpAddr = [10, 7, 0, 1].into();
        let knows = server("127.0.0.1", move |name, kind| {
            Some(if (name, kind) == ("api.rack.example", 1) { Ok(vec![v4]) } else { Err(3) })
        });
        // A broken server denies the name for the other address family.
        assert_eq!(find("api", &configuration(vec![knows])).unwrap(), [v4]);
        let error = find("else", &configuration(vec![knows])).unwrap_err().to_string();
        assert_eq!(
            error,
            "the name else was not resolved: the name servers report that the name does not exist"
        );
        let away = server("127.0.0.1", |_, _| None);
        let error = find("api", &configuration(vec![away])).unwrap_err().to_string();
        assert_eq!(error, "the name api was not resolved: no usable answer from 127.0.0.1");
    }

    #[test]
    fn rfc5452_answer_to_another_question_is_ignored() {
        let (v4, forged): (IpAddr, [u8; 4]) = ([10, 7, 0, 1].into(), [192, 0, 2, 9]);
        let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let forger = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            let (length, peer) = socket.recv_from(&mut buffer).unwrap();
            let question = &buffer[..length];
            let reply = |name_octet: u8, kind: u8, octets: [u8; 4]| {
                let mut reply = question.to_vec();
                (reply[2], reply[3], reply[7]) = (0x81, 0x80, 1);
                (reply[13], reply[length - 3]) = (name_octet, kind);
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
                reply.extend(octets);
                reply
            };
            let mut without = question.to_vec();
            (without[2], without[3], without[5]) = (0x81, 0x83, 0);
            without.truncate(12);
            for packet in
                [reply(b'x', 1, forged), reply(b'a', 28, forged), without, reply(b'A', 1, [10, 7, 0, 1])]
            {
                socket.send_to(&packet, peer).unwrap();
            }
        });
        let asked = ask("api.rack.example", &[Kind::A], &[address], 1, Duration::from_secs(10));
        assert_eq!(asked, Asked::Found(vec![v4]));
        forger.join().unwrap();
    }

    #[test]
    fn rfc7766_answer_that_does_not_fit_into_a_packet_is_asked_for_over_tcp() {
        let v4: IpAddr = [10, 7, 0, 1].into();
        let (tcp, udp) = loop {
            let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
                break (tcp, udp);
            }
        };
        let address = tcp.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            let (length, peer) = udp.recv_from(&mut buffer).unwrap();
            (buffer[2], buffer[3]) = (0x83, 0x80);
            udp.send_to(&buffer[..length], peer).unwrap();
            let mut stream = tcp.accept().unwrap().0;
            let mut question = vec![0; 2 + length];
            stream.read_exact(&mut question).unwrap();
            let mut answer = question.split_off(2);
            (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 10, 7, 0, 1]);
            let length = u16::try_from(answer.len()).unwrap().to_be_bytes();
            // In pieces, as a network may bring it.
            for piece in [&length[..1], &length[1..], &answer[..20], &answer[20..]] {
                stream.write_all(piece).unwrap();
            }
        });
        let asked = ask("api.rack.example", &[Kind::A], &[address], 1, Duration::from_secs(10));
        assert_eq!(asked, Asked::Found(vec![v4]));
        server.join().unwrap();
    }

    #[test]
    fn refused_search_domain_does_not_end_the_lookup_as_with_glibc() {
        let v4: IpAddr = [10, 7, 0, 1].into();
        let mut configuration = configuration(vec![server("127.0.0.1", move |name, kind| {
            Some(match (name, kind) {
                ("api.corp.example", _) => Err(2),
                ("api.half.example", 1) => Err(3),
                ("api.half.example", _) => Err(5),
                ("api.rack.example", 1) => Ok(vec![v4]),
                _ => Err(3),
            })
        })]);
        let search = ["corp.example", "half.example", "rack.example"];
        configuration.search = search.map(str::to_owned).to_vec();
        assert_eq!(find("api", &configuration).unwrap(), [v4]);
        let error = find("else", &configuration).unwrap_err().to_string();
        assert!(error.ends_with("the name servers report that the name does not exist"), "{error}");
        configuration.search.pop();
        let error = find("api", &configuration).unwrap_err().to_string();
        let why = "127.0.0.1 does not know whether api.corp.example exists";
        assert_eq!(error, format!("the name api was not resolved: {why}"));
    }
}
