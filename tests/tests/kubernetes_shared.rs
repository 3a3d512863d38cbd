//! What needs an API server with everything of `deploy/` and no controller of ours: kinds, roles, policies, documents, the command line,
//! the real agent, pods. All share one server and tell their objects apart by name or namespace; a test that stops its server has its
//! own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod kubernetes {
    mod agent;
    mod approvals;
    mod cli;
    mod cluster;
    mod crds;
    mod documents;
    mod drain;
    mod pod;
    mod requests;
    mod roles;
    mod rules;
}
