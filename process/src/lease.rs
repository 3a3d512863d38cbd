//! One of several programs leads, by a Lease in the cluster: who (`election`, pure), by which requests ([`Candidate`]), and for how
//! long ([`Tenure`]).
//!
//! Knows nothing of what is led. Called by pxed, of which one at a time drives a site's BMCs, and by `bedplate-controller`.

mod candidate;
mod election;
mod tenure;
#[cfg(test)]
mod tests;

pub use candidate::Candidate;
pub use tenure::Tenure;
