//! FRUs as the definition draws them, in every type of field, and whatever else a BMC may answer.

#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use proptest::prelude::*;

use super::*;
use crate::command::{Command, fru::GetFruArea};

/// Maximum length of an area: it is an octet, in units of 8.
const LONGEST_AREA: usize = 2040;

fn field(kind: u8, octets: &[u8]) -> Vec<u8> {
    let head = kind << 6 | u8::try_from(octets.len()).unwrap();
    [&[head], octets].concat()
}

fn text(text: &str) -> Vec<u8> {
    field(3, text.as_bytes())
}

/// Pads to whole units and closes with the checksum.
fn closed(mut octets: Vec<u8>) -> Vec<u8> {
    while octets.len() % 8 != 7 {
        octets.push(0);
    }
    if octets.len() > 8 {
        octets[1] = u8::try_from((octets.len() + 1) / 8).unwrap();
    }
    let sum = octets.iter().fold(0_u8, |sum, octet| sum.wrapping_add(*octet));
    octets.push(sum.wrapping_neg());
    octets
}

fn product(language: u8, fields: &[Vec<u8>]) -> Vec<u8> {
    closed([&[1, 0, language], &fields.concat()[..], &[END]].concat())
}

fn board(fields: &[Vec<u8>]) -> Vec<u8> {
    closed([&[1, 0, 25, 0, 0, 0], &fields.concat()[..], &[END]].concat())
}

fn fru(board: &[u8], product: &[u8]) -> Vec<u8> {
    let begin = |area: &[u8], at: usize| if area.is_empty() { 0 } else { u8::try_from(at / 8).unwrap() };
    let header = closed(vec![1, 0, 0, begin(board, 8), begin(product, 8 + board.len()), 0]);
    [&header, board, product].concat()
}

fn spoken() -> Vec<u8> {
    let board = board(&[text("Boards Inc"), text("X11"), text("B-77"), text("PN")]);
    let product = product(
        25,
        &[text("Example"), text("Server 9 "), text("PN"), text("v1"), text("SN-0042"), text("tag")],
    );
    fru(&board, &product)
}

/// Reads from a BMC that sends at most `most` octets per answer, or refuses larger requests.
fn read(memory: &[u8], words: bool, most: usize, refuses: bool) -> (Fru, usize) {
    let size = u16::try_from(memory.len()).unwrap();
    let mut reader = FruReader::new(FruArea { size, words });
    let mut reads = 0;
    while let Some(ask) = reader.next() {
        reads += 1;
        let [_, low, high, count] = ask.request().data[..] else { panic!("four octets") };
        let (from, count) = (usize::from(u16::from_le_bytes([low, high])), usize::from(count));
        let (from, count) = if words { (from * 2, count * 2) } else { (from, count) };
        if count > most && refuses {
            reader.refused();
            continue;
        }
        let octets = &memory[from..(from + count.min(most)).min(memory.len())];
        let count = u8::try_from(if words { octets.len() / 2 } else { octets.len() }).unwrap();
        reader.take(&ask.answer(&[&[count], octets].concat()).unwrap());
    }
    (reader.finish(), reads)
}

fn of(manufacturer: &str, product: &str, serial: &str) -> Fru {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Fru { manufacturer: some(manufacturer), product: some(product), serial: some(serial) }
}

#[test]
fn product_area_names_the_machine_in_octets_words_and_any_parts() {
    let memory = spoken();
    for (words, most, refuses) in [
        (false, 255, false),
        (true, 255, false),
        (false, 16, true),
        (true, 8, true),
        (false, 1, false),
        (true, 2, false),
    ] {
        let (found, _) = read(&memory, words, most, refuses);
        assert_eq!(found, of("Example", "Server 9", "SN-0042"), "{words} {most} {refuses}");
    }
}

#[test]
fn board_area_supplies_fields_missing_in_the_product_area() {
    let board = board(&[text("Boards Inc"), text("X11"), text("B-77"), text("PN")]);
    assert_eq!(read(&fru(&board, &[]), false, 64, false).0, of("Boards Inc", "X11", "B-77"));
    let half = product(0, &[text("Example"), field(0, &[]), text("PN")]);
    assert_eq!(read(&fru(&board, &half), false, 64, false).0, of("Example", "X11", "B-77"));
}

#[test]
fn fields_are_read_in_every_type() {
    // "IPMI" is the definition's own example of six bits (section 13).
    let packed = product(
        25,
        &[
            field(2, &[0x29, 0xdc, 0xa6]),
            field(1, &[0x12, 0xa3, 0xb4]),
            field(0, &[]),
            field(0, &[]),
            field(0, &[0xde, 0xad]),
        ],
    );
    assert_eq!(read(&fru(&[], &packed), false, 64, false).0, of("IPMI", "12 3-4", "dead"));
    let unicode = |text: &str| field(3, &text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    let foreign = product(55, &[unicode("富士"), unicode("機"), text(""), text(""), text("S1")]);
    assert_eq!(read(&fru(&[], &foreign), false, 64, false).0, of("富士", "機", "S1"));
    let blank = product(25, &[text("  \0"), field(0, &[0xff; 4]), text(""), text(""), field(3, &[0xff; 8])]);
    assert_eq!(read(&fru(&[], &blank), false, 64, false).0, Fru::default());
}

#[test]
fn area_with_wrong_checksum_version_or_position_is_ignored() {
    let good = spoken();
    let board_at = usize::from(good[3]) * 8;
    for (at, named) in [(0, ""), (4, ""), (7, ""), (board_at + 9, "Example"), (good.len() - 1, "Boards Inc")]
    {
        let mut memory = good.clone();
        memory[at] ^= 0x04;
        let found = read(&memory, false, 64, false).0;
        assert_eq!(found.manufacturer.unwrap_or_default(), named, "octet {at}");
    }
    // The memory ends before the product area does.
    assert_eq!(read(&good[..good.len() - 8], false, 64, false).0.manufacturer.as_deref(), Some("Boards Inc"));
    assert_eq!(read(&[], false, 64, false), (Fru::default(), 0));
    assert_eq!(read(&[0xff; 64], false, 64, false), (Fru::default(), 1));
}

#[test]
fn a_bmc_that_refuses_or_says_nothing_is_not_asked_for_ever() {
    let mut reader = FruReader::new(FruArea { size: u16::MAX, words: false });
    let mut asked = 0;
    while reader.next().is_some() {
        asked += 1;
        reader.refused();
    }
    assert_eq!((asked, reader.finish()), (4, Fru::default()));
    assert_eq!(read(&spoken(), false, 0, false), (Fru::default(), 1));
}

#[test]
fn size_and_access_are_read_and_an_answer_is_no_longer_than_was_asked_for() {
    assert_eq!(
        GetFruArea { device: 0 }.answer(&[0x00, 0x02, 0x01]).unwrap(),
        FruArea { size: 512, words: true }
    );
    assert!(GetFruArea { device: 0 }.answer(&[0, 2]).is_err());
    let ask = ReadFru { device: 0, words: true, offset: 0x0210, count: 8 };
    assert_eq!(ask.request().data, [0, 0x08, 0x01, 4]);
    assert_eq!(ask.answer(&[255, 1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(ask.answer(&[2, 1, 2, 3, 4, 5]).unwrap(), [1, 2, 3, 4]);
    assert!(ask.answer(&[]).is_err());
}

proptest! {
    #[test]
    fn whatever_a_bmc_answers_reading_ends_within_its_bounds(
        size in any::<u16>(), words in any::<bool>(),
        header in proptest::collection::vec(any::<u8>(), 0..8),
        answers in proptest::collection::vec(proptest::option::weighted(0.9, proptest::collection::vec(any::<u8>(), 0..40)), 0..64),
        valid in any::<bool>(),
    ) {
        let mut reader = FruReader::new(FruArea { size, words });
        let (mut reads, mut octets) = (0, 0);
        let mut answers = answers.iter().cycle();
        while let Some(ask) = reader.next() {
            prop_assert!(u32::from(ask.offset) + u32::from(ask.count) <= u32::from(size));
            prop_assert!(ask.count > 0 && (!words || ask.offset % 2 == 0 && ask.count % 2 == 0));
            reads += 1;
            prop_assert!(reads <= MOST_READS);
            if reads == 1 && valid {
                let mut begin = header.clone();
                begin.insert(0, 1);
                begin.truncate(7);
                reader.take(&closed(begin));
                continue;
            }
            match answers.next() {
                Some(Some(answer)) => { octets += answer.len().min(ask.count.into()); reader.take(answer); }
                _ => reader.refused(),
            }
        }
        prop_assert!(octets <= 2 * LONGEST_AREA + 2 * 40);
        let _ = reader.finish();
    }

    #[test]
    fn whatever_an_area_holds_is_read_without_panic(octets in proptest::collection::vec(any::<u8>(), 8..300), is_board in any::<bool>()) {
        let whole = closed(octets);
        let _ = area(if is_board { Kind::Board } else { Kind::Product }, &[&[1], &whole[1..]].concat());
        let _ = area(Kind::Product, &whole);
    }
}
