//! What the tests stand on: hosts in namespaces, and the guard that removes what a run made.

mod harness {
    mod guard;
    mod host;
}
