//! Names the library as the loader finds it, and its symbols after it: the number changes when an old program could
//! not use a new library any more.
//!
//! The linker of binutils gives all exported symbols the soname as their version (`--default-symver`). A version script
//! cannot: rustc passes one of its own, and linkers refuse two.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        "-fuse-ld=bfd",
        "-Wl,-soname,libtakt.so.0",
        "-Wl,--default-symver",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
