//! Linker options of the agent.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    // A megabyte of relocations, which every start reads and which stays resident, becomes some kilobytes. Only where the C library
    // is ours too: one of a host below glibc 2.36 would not understand them.
    if features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        // Generic code is contained several times with identical bytes; the linker merges it. rust-lld
        // supports that, and is the default linker on x86_64 only.
        if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|architecture| architecture == "x86_64") {
            println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
}
