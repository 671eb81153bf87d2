//! Compiles the program of `bpf/` for embedding.

fn main() -> std::process::ExitCode {
    // Atomic operations that return something (Linux 5.12); attaching needs more.
    takt_bpf_build::compile_for("takt_stamp", "v3")
}
