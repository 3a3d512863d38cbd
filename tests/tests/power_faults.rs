//! Power when something is wrong: simulated BMCs with one fault each next to healthy ones, a pxed that is killed in the
//! middle, manifests that are touched, and hostile users and BMCs. One pxed as a process on loopback, no virtual
//! machine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod power_faults {
    mod crooked;
    mod rig;

    mod faulty;
    mod hostile;
    mod killed;
    mod manifests;
}
