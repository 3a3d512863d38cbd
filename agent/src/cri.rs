//! Client of a slot's container runtime (Kubernetes Container Runtime Interface, v1): its readiness, and a
//! test start of a Pod sandbox.
//!
//! It starts no containers and pulls no images. Called by the node's health gate.

mod client;
mod message;

pub use client::{AskRuntimeError, Probe, Readiness, Runtime};
