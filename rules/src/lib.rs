//! Decisions that two programs share (docs/design/rules.md): the version of a Machine, progress and end of operations, the Pods that a drain
//! evicts, and the phase of a Machine.
//!
//! Pure: no clock, no file, no socket, no randomness. The kinds of `bedplate-api` in, plans as plain data out. Called by
//! `bedplate-controller`, pxed, `bedplate-agent` and the CLI.

pub mod claim;
pub mod drain;
pub mod fan_out;
pub mod operation;
pub mod phase;
pub mod selection;
