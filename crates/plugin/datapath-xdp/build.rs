//! Compiles the XDP program of `bpf/` for embedding.

fn main() -> std::process::ExitCode {
    takt_bpf_build::compile("takt_xdp")
}
