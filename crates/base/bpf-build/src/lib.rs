//! Compiles a package's eBPF programs for embedding: what its build script calls.
//!
//! Nothing is compiled, and no compiler needed, where Takt runs.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Compiles `bpf/NAME.bpf.c` of the package to `NAME.bpf.o` in `OUT_DIR`; what is wrong is told to cargo.
pub fn compile(name: &str) -> ExitCode {
    compile_with(name, &[])
}

/// As [`compile`], for kernels with this version of the instruction set: `v3`.
pub fn compile_for(name: &str, instructions: &str) -> ExitCode {
    compile_with(name, &[format!("-mcpu={instructions}")])
}

fn compile_with(name: &str, options: &[String]) -> ExitCode {
    let source = format!("bpf/{name}.bpf.c");
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-env-changed=CLANG");
    match run(&source, name, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(source: &str, name: &str, options: &[String]) -> Result<(), String> {
    let output = PathBuf::from(variable("OUT_DIR")?).join(format!("{name}.bpf.o"));
    let clang = find_clang().ok_or(
        "cannot find clang, which compiles the eBPF programs: `apt-get install clang libbpf-dev`, \
         or name it in the environment variable CLANG",
    )?;
    let mut command = Command::new(&clang);
    command
        .args([
            "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf", "-c", source, "-o",
        ])
        .arg(&output)
        .args(options);
    // `linux/types.h` includes `asm/types.h`, which Debian's multiarch layout keeps in a directory
    // that clang does not search for the bpf target.
    let triplet = format!(
        "/usr/include/{}-linux-gnu",
        variable("CARGO_CFG_TARGET_ARCH")?
    );
    if Path::new(&triplet).is_dir() {
        command.arg(format!("-I{triplet}"));
    }
    let result = command
        .output()
        .map_err(|error| format!("cannot run {clang}: {error}"))?;
    if result.status.success() {
        return Ok(());
    }
    Err(format!(
        "{clang} cannot compile {source}; when a header is missing: `apt-get install clang \
         libbpf-dev`\n{}",
        String::from_utf8_lossy(&result.stderr)
    ))
}

/// The compiler: the variable CLANG, or `clang`, or the newest that carries its version in its
/// name.
fn find_clang() -> Option<String> {
    if let Ok(named) = std::env::var("CLANG") {
        return Some(named);
    }
    std::iter::once("clang".to_owned())
        .chain((14..=20).rev().map(|version| format!("clang-{version}")))
        .find(|name| {
            Command::new(name)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        })
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|error| format!("cannot read {name}: {error}"))
}
