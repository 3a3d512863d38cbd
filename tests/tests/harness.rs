//! Tests of the harness: hosts in namespaces, and the guard that removes what a run created.

mod harness {
    mod guard;
    mod host;
}
