//! The types that Bedplate's programs and its users share: identifiers, the custom resources, the bodies that travel
//! between agent and pxed.
//!
//! Types only: nothing here is async, reads a clock or a file, or opens a socket. Every program depends on it, it
//! depends on none.

pub mod bounded_times;
pub mod condition;
pub mod crds;
pub mod enrollment;
pub mod id;
pub mod image_reference;
pub mod kernel_argument;
pub mod reason;
mod schema;
pub mod wire;
pub mod writers;

#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
pub mod claim;
#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
pub mod cluster;
#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
pub mod configuration;
#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
pub mod machine;
#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
#[allow(clippy::duplicated_attributes, reason = "each column has its own name, type and path")]
pub mod operation;
#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
pub mod secret;
#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
pub mod selector;
#[allow(unreachable_pub, reason = "KubeSchema copies each struct into the function that makes its schema")]
pub mod version;
