//! All machines of a site: the running workers, and state that several machines share.

pub(crate) mod assignment;
pub(crate) mod deleted_machines;
pub(crate) mod duplicates;
pub(crate) mod finalizers;
pub(crate) mod grace_timers;
mod leadership;
pub(crate) mod supervisor;
