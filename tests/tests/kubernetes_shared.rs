//! Tests that need an API server with all of `deploy/` but without our controller: kinds, roles, policies, documents, the command line,
//! the real agent, pods. All share one server, and use their own names or namespaces of objects. A test that stops its server has its
//! own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod kubernetes {
    mod agent;
    mod approvals;
    mod claims;
    mod cli;
    mod cluster;
    mod core_kinds;
    mod crds;
    mod documents;
    mod drain;
    mod infrastructure;
    mod managers;
    mod pod;
    mod requests;
    mod roles;
    mod rules;
}
