#!/usr/bin/env bash
# Runs the fuzz targets: run.sh SECONDS [TARGET…], or builds them: run.sh build
#
# Every target (or those named) runs for SECONDS, starting from seeds/TARGET and from what earlier
# runs found in corpus/TARGET. Fails if a target crashes, hangs or does not build. Each run tries other inputs,
# those with the same FUZZ_SEED the same ones. FUZZ_OPT_LEVEL=1 builds sooner what then runs slower.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-}
if ! [[ $seconds =~ ^([1-9][0-9]*|build)$ ]]; then
    echo "usage: $0 SECONDS [TARGET…]   (SECONDS for each target, at least 1)
       $0 build" >&2
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

[[ -z ${FUZZ_OPT_LEVEL:-} ]] || export CARGO_PROFILE_RELEASE_OPT_LEVEL=$FUZZ_OPT_LEVEL

targets=("$@")
# All at once keep every core busy.
to_build=("${targets[@]:-}")
if ((${#targets[@]} == 0)); then
    mapfile -t targets < <("${cargo[@]}" fuzz list)
fi

for target in "${to_build[@]}"; do
    "${cargo[@]}" fuzz build ${target:+"$target"} || { echo "${target:-one} does not build: nothing was run" >&2; exit 1; }
done
[[ $seconds != build ]] || exit 0

# Where cargo-fuzz has put them, with the options that it would run them with.
host=$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')
told=$(mktemp -d)
# What runs in the background does not hear of an interrupt by itself.
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$told"' EXIT
trap 'exit 130' INT TERM

# fuzz TARGET: what it says is in $told/TARGET when it ends, and that it failed in $told/TARGET.failed.
fuzz() {
    local target=$1 folders=("corpus/$1")
    mkdir -p "corpus/$target" "artifacts/$target"
    if [[ -d seeds/$target ]]; then
        folders+=("seeds/$target")
    fi
    ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_odr_violation=0 "target/$host/release/$target" -artifact_prefix="artifacts/$target/" \
        -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 "${folders[@]}" \
        >"$told/$target" 2>&1 || touch "$told/$target.failed"
}

# A target keeps one core busy.
running=0
for target in "${targets[@]}"; do
    if ((running >= $(nproc))); then
        wait -n
        running=$((running - 1))
    fi
    echo "== $target: $seconds s"
    fuzz "$target" &
    running=$((running + 1))
done
wait

passed=0
failed=()
for target in "${targets[@]}"; do
    echo "== $target"
    if [[ -e $told/$target.failed ]]; then
        failed+=("$target")
        cat "$told/$target"
    else
        passed=$((passed + 1))
        grep -E '^(Done|stat::number_of_executed_units)' "$told/$target" || true
    fi
done

if ((${#failed[@]} > 0)); then
    echo "failed: ${failed[*]} (inputs that made them fail are in $PWD/artifacts)"
fi
echo "$passed passed, ${#failed[@]} failed"
((${#failed[@]} == 0))
