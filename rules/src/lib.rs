//! Decisions that two programs make alike (docs/design/rules.md): which version a Machine gets, how a fleet operation proceeds and how an
//! operation ends, which Pods leave a Node, and the phase of a Machine.
//!
//! Pure: no clock, no file, no socket, no randomness. The kinds of `bedplate-api` in, plans as plain data out. Called by
//! `bedplate-controller`, pxed, `bedplate-agent` and the CLI.

pub mod claim;
pub mod drain;
pub mod fan_out;
pub mod operation;
pub mod phase;
pub mod selection;
