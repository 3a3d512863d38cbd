//! Tests of seldom changed parts of the harness: the control plane of tests, and the rack's virtual machines.

mod soak_harness {
    mod kubernetes;
    mod stand_in;
}
