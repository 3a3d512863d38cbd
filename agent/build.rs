//! How the agent is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    // A megabyte of relocations, which every start reads and which stays resident, becomes some kilobytes. Only where the C library
    // is ours too: one of a host below glibc 2.36 would not understand them.
    if features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        // What is generic is there several times, in the same bytes: once is enough. Rust's own linker does it, which is the usual one
        // only there.
        if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|architecture| architecture == "x86_64") {
            println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
}
