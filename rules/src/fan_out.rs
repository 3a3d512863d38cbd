//! What becomes of MachineOperations, whoever carries them out (docs/rules.md, O1 to O8): which Machines of a selector begin now and
//! what they amount to, and how long an operation may wait and take.
//!
//! Pure: no clock, no file, no socket, no randomness. The kinds of `bedplate-api` in, plain data out. Called by `bedplate-controller`
//! in a cluster, and by pxed where there is none.

mod deadline;
mod parent;

pub use deadline::{LEFT_TO_EXECUTOR, done_within, taken_within};
pub use parent::{
    CHILDREN, Fan, MACHINE, Now, PARENT, Progress, SITE, child, child_name, parent_label, plan, standing,
};
