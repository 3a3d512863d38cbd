//! Pure: accepted sequence numbers of a session's packets (IPMI 2.0 section 6.12.13): each once, and none that is long past.
//!
//! Only authenticated packets are shown to it. A jump ahead is therefore taken however far it is: the packets between were lost, and a
//! forger could not have made it.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Maximum distance of an accepted packet behind the highest number.
const MAX_DISTANCE_BEHIND: u32 = 32;

/// Window of one direction of one session. Number 0 never occurs in a session.
#[derive(Debug, Clone, Copy, Default)]
pub struct Window {
    highest: u32,
    /// Bit n: `highest` - n was seen.
    seen: u32,
}

impl Window {
    /// Returns true if a packet with this number is accepted, and marks the number as seen.
    pub fn take(&mut self, number: u32) -> bool {
        if number == 0 {
            return false;
        }
        let ahead = number.wrapping_sub(self.highest);
        if self.highest == 0 || (ahead != 0 && ahead < 1 << 31) {
            let shifted = if self.highest == 0 { None } else { self.seen.checked_shl(ahead) };
            self.seen = shifted.unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let behind = self.highest.wrapping_sub(number);
        let Some(bit) = 1_u32.checked_shl(behind).filter(|_| behind < MAX_DISTANCE_BEHIND) else {
            return false;
        };
        let new = self.seen & bit == 0;
        self.seen |= bit;
        new
    }
}

/// The number after this one, which is never 0.
#[must_use]
pub fn next(number: u32) -> u32 {
    number.checked_add(1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_taken_once_in_any_order() {
        let mut window = Window::default();
        let taken: Vec<bool> = [1, 3, 2, 2, 3, 40, 8, 9, 9, 0, 39].map(|number| window.take(number)).to_vec();
        assert_eq!(taken, [true, true, true, false, false, true, false, true, false, false, true]);
    }

    #[test]
    fn numbers_go_on_past_their_end() {
        let mut window = Window::default();
        assert!(window.take(u32::MAX) && window.take(next(u32::MAX)) && !window.take(u32::MAX));
        assert_eq!(next(u32::MAX), 1);
    }
}
