//! Compiles the shim over libfabric's inline functions.

fn main() {
    println!("cargo:rerun-if-changed=shim/shim.c");
    let library = pkg_config::Config::new()
        .atleast_version("1.17")
        .cargo_metadata(false)
        .probe("libfabric")
        .unwrap_or_else(|error| {
            panic!("libfabric 1.17 or newer is not installed (`apt-get install libfabric-dev`): {error}")
        });
    let mut build = cc::Build::new();
    build.file("shim/shim.c").flag("-std=gnu11").flag("-O2");
    for path in &library.include_paths {
        // Not as `include`: libfabric's headers are not ours to mend.
        build.flag("-isystem").flag(path.display().to_string());
    }
    build.warnings(true).compile("takt_fabric_shim");
    for path in &library.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    println!("cargo:rustc-link-lib=dylib=fabric");
}
