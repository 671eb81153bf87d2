//! Compiles the programs of `bpf/` for embedding.

fn main() -> std::process::ExitCode {
    takt_bpf_build::compile("takt_balance")
}
