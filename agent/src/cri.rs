//! A slot's container runtime, asked over its own socket (Kubernetes' Container Runtime Interface, v1): is it ready, and does a
//! Pod sandbox really start.
//!
//! It starts no containers and pulls no images. Called by the node's health gate.

mod client;
mod message;

pub use client::{AskRuntimeError, Probe, Readiness, Runtime};
