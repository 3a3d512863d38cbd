//! Leader election among several programs, by a Lease in the cluster: the decision (`election`, pure), its
//! requests ([`Candidate`]), and the tenure ([`Tenure`]).
//!
//! Does not know the leader's work. Called by pxed, of which one instance
//! drives a site's BMCs, and by `bedplate-controller`.

mod candidate;
mod election;
mod tenure;
#[cfg(test)]
mod tests;

pub use candidate::Candidate;
pub use tenure::Tenure;
