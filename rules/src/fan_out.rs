//! Rules of MachineOperations for every executor (docs/design/rules.md, O1 to O8). They decide which Machines of a
//! selector start now, the summary of their results, and the timeouts of an operation.
//!
//! Pure: no clock, no file, no socket, no randomness. The kinds of `bedplate-api` in, plain data out. Called by `bedplate-controller`
//! in a cluster, and by pxed without a cluster.

mod deadline;
mod parent;

pub use deadline::{LEFT_TO_EXECUTOR, done_within, taken_within};
pub use parent::{
    CHILDREN, Fan, MACHINE, Now, PARENT, Progress, SITE, child, child_name, parent_label, plan, standing,
};
