//! Compiles the shim over DPDK's inline functions, with the flags that DPDK wants for itself: they reach no
//! other code.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=shim/shim.c");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let flags = pkg_config(&["--cflags", "libdpdk"]);
    pkg_config(&["--atleast-version=22.11", "libdpdk"]);
    let mut build = cc::Build::new();
    build.file("shim/shim.c").flag("-std=gnu11").flag("-O2");
    for flag in flags.split_whitespace() {
        build.flag(flag);
    }
    // DPDK's headers are not ours to mend.
    build.flag("-Wno-deprecated-declarations").warnings(true);
    build.compile("takt_dpdk_shim");
    for directory in pkg_config(&["--libs-only-L", "libdpdk"]).split_whitespace() {
        println!(
            "cargo:rustc-link-search=native={}",
            directory.trim_start_matches("-L")
        );
    }
    // The drivers are loaded by DPDK itself, from its directory of plugins.
    for library in ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_eal"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}

/// What pkg-config says of DPDK.
fn pkg_config(arguments: &[&str]) -> String {
    let program = std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = Command::new(&program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {program}: {error} (install pkg-config)"));
    assert!(
        output.status.success(),
        "DPDK 22.11 or newer is not installed (`apt-get install libdpdk-dev`): {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
