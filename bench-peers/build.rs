//! Builds what Cyclone DDS's C API is used by: the type by its IDL compiler (`idlc` of cyclonedds-tools), and a few functions.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/cyclone");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let idl = std::fs::canonicalize("src/cyclone/blob.idl").expect("it is there");
    let compiled = Command::new("idlc").arg(idl).current_dir(&out).status();
    assert!(
        compiled.is_ok_and(|status| status.success()),
        "idlc fails: install cyclonedds-tools and cyclonedds-dev"
    );
    cc::Build::new()
        .include(&out)
        .file("src/cyclone/peer.c")
        .file(out.join("blob.c"))
        .compile("takt_bench_cyclone");
    println!("cargo::rustc-link-lib=ddsc");
}
