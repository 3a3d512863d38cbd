//! Pure: what the FRU of a machine says of it: maker, model and serial number (IPMI Platform Management FRU Information Storage Definition
//! v1.0). Sends nothing: [`FruReader`] says what to read next.
//!
//! ```text
//! common header --at 8 times its octets--> product area, board area: 8 octets (length among them), then the rest
//! ```
//! Read are the header and these two areas, at most 2,040 octets each and in at most [`MOST_READS`] parts. What has a wrong
//! checksum is not believed. The product area goes before the board area: the latter describes the mainboard, and stands for the machine
//! only where nothing else does.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::command::fru::{FruArea, MACHINE, ReadFru};

/// More parts are not read, however short a BMC makes them.
const MOST_READS: u16 = 600;

/// Unit of offsets and lengths, in octets.
const UNIT_OCTETS: u16 = 8;
/// A part, at first; a BMC that refuses it is asked for half, down to [`SHORTEST_PART`].
const LONGEST_PART: u8 = 32;
const SHORTEST_PART: u8 = 4;
/// The version of header and areas.
const VERSION: u8 = 1;
/// Type octet that ends the fields.
const END: u8 = 0xc1;
/// Language codes for English.
const ENGLISH: [u8; 2] = [0, 25];
/// Letters of BCD plus; the last three are reserved.
const BCD_PLUS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', ' ', '-', '.', ':', ',', '_'];

/// Machine data in a FRU, without surrounding spaces. `None`: not present in the FRU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fru {
    /// Manufacturer.
    pub manufacturer: Option<String>,
    /// The model.
    pub product: Option<String>,
    /// The serial number.
    pub serial: Option<String>,
}

impl Fru {
    /// Returns the fields with missing ones taken from the other.
    #[must_use]
    fn or(self, other: Self) -> Self {
        Self {
            manufacturer: self.manufacturer.or(other.manufacturer),
            product: self.product.or(other.product),
            serial: self.serial.or(other.serial),
        }
    }
}

/// Kind of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Product,
    Board,
}

/// Position of the data that is read now.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// `None`: the common header.
    area: Option<Kind>,
    start: u16,
    length: u16,
}

/// Reads a FRU part by part.
#[derive(Debug)]
pub struct FruReader {
    size: u16,
    words: bool,
    part: u8,
    reads: u16,
    /// Current span, and the octets read of it; `None`: all is read.
    now: Option<(Span, Vec<u8>)>,
    /// Spans to read next, last first.
    left: Vec<Span>,
    product: Fru,
    board: Fru,
}

impl FruReader {
    /// Reads the FRU of a BMC.
    #[must_use]
    pub fn new(area: FruArea) -> Self {
        let header = Span { area: None, start: 0, length: UNIT_OCTETS };
        Self {
            size: area.size,
            words: area.words,
            part: LONGEST_PART,
            reads: 0,
            now: (area.size >= UNIT_OCTETS).then(|| (header, Vec::new())),
            left: Vec::new(),
            product: Fru::default(),
            board: Fru::default(),
        }
    }

    /// Returns the next read request; `None` if everything is read.
    #[must_use]
    pub fn next(&self) -> Option<ReadFru> {
        let (span, read) = self.now.as_ref().filter(|_| self.reads < MOST_READS)?;
        let read = u16::try_from(read.len()).ok()?;
        let missing = span.length.checked_sub(read)?;
        let count = u8::try_from(missing).unwrap_or(u8::MAX).min(self.part);
        let offset = span.start.checked_add(read)?;
        Some(ReadFru { device: MACHINE, words: self.words, offset, count })
    }

    /// Takes the BMC's answer to [`Self::next`].
    pub fn take(&mut self, octets: &[u8]) {
        self.reads = self.reads.saturating_add(1);
        let Some(asked) = self.next() else {
            self.now = None;
            return;
        };
        let octets = octets.get(..asked.count.into()).unwrap_or(octets);
        // Half a word cannot be followed by the other half; nothing is followed by nothing.
        if octets.is_empty() || (self.words && octets.len() & 1 != 0) {
            self.turn();
            return;
        }
        let Some((span, read)) = &mut self.now else { return };
        read.extend_from_slice(octets);
        if read.len() < usize::from(span.length) {
            return;
        }
        let (span, read) = (*span, std::mem::take(read));
        self.read(span, read);
    }

    /// Records that the BMC refused [`Self::next`]: fewer octets are requested, or the current span is skipped.
    pub fn refused(&mut self) {
        self.reads = self.reads.saturating_add(1);
        self.part = self.part.wrapping_shr(1);
        if self.part < SHORTEST_PART {
            self.part = SHORTEST_PART;
            self.turn();
        }
    }

    /// Returns the data that was found.
    #[must_use]
    pub fn finish(self) -> Fru {
        self.product.or(self.board)
    }

    /// A header, the begin of an area or a whole area was read.
    fn read(&mut self, span: Span, read: Vec<u8>) {
        match span.area {
            None => {
                let [product, board] = areas(&read).unwrap_or_default();
                let found = [(Kind::Board, board), (Kind::Product, product)];
                let spans = found.into_iter().filter_map(|(kind, at)| self.begin(kind, at));
                self.left = spans.collect();
            }
            Some(kind) => {
                let whole = read.get(1).map_or(0, |length| u16::from(*length).saturating_mul(UNIT_OCTETS));
                if span.length == UNIT_OCTETS && whole > UNIT_OCTETS && self.fits(span.start, whole) {
                    self.now = Some((Span { length: whole, ..span }, read));
                    return;
                }
                let found =
                    if whole == span.length { area(kind, &read).unwrap_or_default() } else { Fru::default() };
                match kind {
                    Kind::Product => self.product = found,
                    Kind::Board => self.board = found,
                }
            }
        }
        self.turn();
    }

    /// The first octets of an area; `None`: it is not there.
    fn begin(&self, kind: Kind, at: u8) -> Option<Span> {
        let start = u16::from(at).saturating_mul(UNIT_OCTETS);
        let there = at != 0 && self.fits(start, UNIT_OCTETS);
        there.then_some(Span { area: Some(kind), start, length: UNIT_OCTETS })
    }

    fn fits(&self, start: u16, length: u16) -> bool {
        start.checked_add(length).is_some_and(|end| end <= self.size)
    }

    fn turn(&mut self) {
        self.now = self.left.pop().map(|span| (span, Vec::new()));
    }
}

fn is_whole(octets: &[u8]) -> bool {
    octets.iter().fold(0_u8, |sum, octet| sum.wrapping_add(*octet)) == 0
}

/// Returns the offsets of the board and product areas from a common header.
fn areas(header: &[u8]) -> Option<[u8; 2]> {
    let [version, _, _, board, product, ..] = header.first_chunk::<8>()?;
    (version & 0x0f == VERSION && is_whole(header)).then_some([*product, *board])
}

/// Parses an area.
fn area(kind: Kind, octets: &[u8]) -> Option<Fru> {
    let [version, _, language, ..] = octets.first_chunk::<8>()?;
    if version & 0x0f != VERSION || !is_whole(octets) {
        return None;
    }
    let english = ENGLISH.contains(language);
    // After version, length and language a board has its date; the last octet is the checksum.
    let (begin, before_serial) = match kind {
        Kind::Product => (3, 2),
        Kind::Board => (6, 0),
    };
    let fields = octets.get(begin..octets.len().checked_sub(1)?)?;
    let mut fields = Fields(fields);
    let manufacturer = fields.next().and_then(|field| field.text(english));
    let product = fields.next().and_then(|field| field.text(english));
    // Numbers are in English in every language.
    let serial = fields.nth(before_serial).and_then(|field| field.text(true));
    Some(Fru { manufacturer, product, serial })
}

/// The fields of an area, one after another.
struct Fields<'a>(&'a [u8]);

/// A field: its type, and its octets.
struct Field<'a> {
    kind: u8,
    octets: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        let (head, rest) = self.0.split_first()?;
        self.0 = &[];
        if *head == END {
            return None;
        }
        let (octets, rest) = rest.split_at_checked(usize::from(head & 0x3f))?;
        self.0 = rest;
        Some(Field { kind: head >> 6, octets })
    }
}

impl Field<'_> {
    /// The text; `None`: it is empty.
    fn text(&self, english: bool) -> Option<String> {
        let text: String = match self.kind {
            0 => binary(self.octets),
            1 => self.octets.iter().flat_map(|octet| [octet >> 4, octet & 0x0f]).map(bcd).collect(),
            2 => six_bits(self.octets),
            _ if english => self.octets.iter().map(|octet| char::from(*octet)).collect(),
            _ => {
                let units = self.octets.chunks_exact(2).filter_map(|pair| pair.first_chunk().copied());
                String::from_utf16_lossy(&units.map(u16::from_le_bytes).collect::<Vec<u16>>())
            }
        };
        let text = text.trim_matches(|c: char| c.is_control() || c.is_whitespace() || c == '\u{ff}');
        (!text.is_empty()).then(|| text.to_owned())
    }
}

/// In hexadecimal digits, unless nothing was ever written there.
fn binary(octets: &[u8]) -> String {
    if octets.iter().all(|octet| matches!(octet, 0 | 0xff)) {
        return String::new();
    }
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn bcd(nibble: u8) -> char {
    BCD_PLUS.get(usize::from(nibble)).copied().unwrap_or(' ')
}

/// Four letters in three octets, the lowest bits first.
fn six_bits(octets: &[u8]) -> String {
    let mut text = String::new();
    let (mut bits, mut count) = (0_u32, 0_u32);
    for octet in octets {
        bits |= u32::from(*octet).wrapping_shl(count);
        count = count.saturating_add(8);
        while count >= 6 {
            let [low, ..] = bits.to_le_bytes();
            text.push(char::from((low & 0x3f).saturating_add(0x20)));
            bits = bits.wrapping_shr(6);
            count = count.saturating_sub(6);
        }
    }
    text
}

#[cfg(test)]
mod tests;
