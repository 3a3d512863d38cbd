//! Tables of the deletion: each branch of each step.

mod drained;
mod node;
mod order;
mod pods;
mod volumes;
