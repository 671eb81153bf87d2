//! Names the library as the loader finds it: the number changes when an old program could not use a new
//! library any more.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtakt.so.0");
}
