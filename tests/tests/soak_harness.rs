//! What the tests stand on and what seldom changes: the control plane of tests, and the rack's virtual machines.

mod soak_harness {
    mod kubernetes;
    mod stand_in;
}
