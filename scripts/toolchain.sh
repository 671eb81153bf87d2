#!/usr/bin/env bash
# Prints the toolchain to build with: the one of rust-toolchain.toml, which rustup fetches if it is missing. Where it cannot be
# had (no network), the default one, and a warning. Nothing without rustup: whatever cargo is there is used then.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v rustup >/dev/null || exit 0
wanted=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
if ! rustup run "$wanted" rustc --version >/dev/null 2>&1; then
    echo "toolchain: installing Rust $wanted" >&2
    if ! timeout 600 rustup toolchain install "$wanted" --profile minimal --component rustfmt --component clippy --no-self-update >&2; then
        default=$(cd / && rustup default | cut -d ' ' -f 1)
        echo "toolchain: Rust $wanted cannot be had: building with $default instead, which this version of Takt is not released with" >&2
        wanted=$default
    fi
fi
echo "$wanted"
