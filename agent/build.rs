//! How the agent is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    // A megabyte of relocations, which every start reads and which stays resident, becomes some kilobytes. Only where the C library
    // is ours too: one of a host below glibc 2.36 would not understand them.
    if features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
