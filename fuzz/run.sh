#!/usr/bin/env bash
# Runs the fuzz targets: run.sh SECONDS [TARGET…]
#
# Every target (or those named) runs for SECONDS, starting from seeds/TARGET and from what earlier
# runs found in corpus/TARGET. Fails if a target crashes, hangs or does not build. Each run tries other inputs,
# those with the same FUZZ_SEED the same ones.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-}
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: $0 SECONDS [TARGET…]   (SECONDS for each target, at least 1)" >&2
    exit 2
fi
shift

toolchain=${FUZZ_TOOLCHAIN:-nightly}
cargo=(cargo "+$toolchain")
if ! "${cargo[@]}" --version >/dev/null 2>&1; then
    echo "the toolchain $toolchain is missing: installing it"
    rustup toolchain install "$toolchain" --profile minimal --no-self-update
fi
if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "cargo-fuzz is missing: installing it"
    "${cargo[@]}" install --locked cargo-fuzz
fi

targets=("$@")
# All at once keep every core busy.
to_build=("${targets[@]:-}")
if ((${#targets[@]} == 0)); then
    mapfile -t targets < <("${cargo[@]}" fuzz list)
fi

for target in "${to_build[@]}"; do
    "${cargo[@]}" fuzz build ${target:+"$target"} || { echo "${target:-one} does not build: nothing was run" >&2; exit 1; }
done

passed=0
failed=()
for target in "${targets[@]}"; do
    echo "== $target: $seconds s"
    mkdir -p "corpus/$target"
    folders=("corpus/$target")
    if [[ -d seeds/$target ]]; then
        folders+=("seeds/$target")
    fi
    if "${cargo[@]}" fuzz run "$target" "${folders[@]}" -- \
        -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1; then
        passed=$((passed + 1))
    else
        failed+=("$target")
    fi
done

if ((${#failed[@]} > 0)); then
    echo "failed: ${failed[*]} (inputs that made them fail are in $PWD/artifacts)"
fi
echo "$passed passed, ${#failed[@]} failed"
((${#failed[@]} == 0))
