//! Pure: reasons as labels of counters.
//!
//! Called by the counters of `enroll` and `power`. `api` has the reasons, `process` the counters; neither knows the other.

use bedplate_api::reason::Reason;
use bedplate_process::counter::Label;

/// A reason that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasonLabel<R>(R);

impl<R> From<R> for ReasonLabel<R> {
    fn from(reason: R) -> Self {
        Self(reason)
    }
}

impl<R: Reason> Label for ReasonLabel<R> {
    const VALUE_COUNT: usize = R::ALL.len();

    fn at(place: usize) -> Option<Self> {
        R::ALL.get(place).copied().map(Self)
    }

    fn word(self) -> &'static str {
        self.0.as_str()
    }

    fn index(self) -> usize {
        // Each reason is in the list of its set.
        R::ALL.iter().position(|reason| *reason == self.0).unwrap_or(R::ALL.len())
    }
}

#[cfg(test)]
mod tests {
    use bedplate_api::reason::bmc::BmcFault;
    use bedplate_process::counter::By;

    use super::*;

    #[test]
    fn each_reason_counts_for_itself_and_all_are_shown() {
        let by = By::<ReasonLabel<BmcFault>>::default();
        for (number, fault) in BmcFault::ALL.iter().copied().enumerate() {
            (0..=number).for_each(|_| by.one(fault));
        }
        let shown: Vec<_> = by.all().collect();
        let expected = BmcFault::ALL.iter().zip(1..).map(|(fault, count)| (fault.as_str(), count));
        assert_eq!(shown, expected.collect::<Vec<_>>());
    }
}
