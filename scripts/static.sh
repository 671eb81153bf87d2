#!/usr/bin/env bash
# Builds a takt that is linked statically against musl, and has it run in a root with nothing in it.
# Usage: scripts/static.sh      as root, or the last step is left out
# By the environment: PROFILE (release), OUT (out/static), CARGO
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-unknown-linux-musl
profile=${PROFILE:-release}
out=${OUT:-out/static}
fail() { echo "FAILED: $*" >&2; exit 1; }

command -v musl-gcc >/dev/null || fail "musl-gcc is missing: apt-get install musl-tools"
if ! rustc --print target-libdir --target "$target" 2>/dev/null | xargs test -d; then
    command -v rustup >/dev/null || fail "the standard library for $target is missing, and there is no rustup to get it by"
    rustup target add "$target"
fi

# A directory of its own: flags and features differ from those of other builds.
export CARGO_TARGET_DIR=target/static CC_x86_64_unknown_linux_musl=musl-gcc
${CARGO:-cargo} build -p takt-cli --target "$target" --profile "$profile"
folder=$profile
[ "$profile" != dev ] || folder=debug
mkdir -p "$out"
strip -o "$out/takt" "target/static/$target/$folder/takt"

if readelf --dynamic "$out/takt" | grep NEEDED; then fail "$out/takt needs libraries"; fi
[ "$(id -u)" -eq 0 ] || { echo "static: $out/takt (not tried in an empty root: that needs root)"; exit; }
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
mkdir -m 700 "$root/run"
cp "$out/takt" "$root/takt"
# Nothing else is there: no library, no shell, no /proc, no /dev, no configuration.
env -i "$(command -v chroot)" "$root" /takt --version
# Publisher and subscriber of one network namespace find each other.
unshare --net sh -c 'ip link set lo up
    export XDG_RUNTIME_DIR=/run
    chroot "$0" /takt sub weather --count 1 >"$0/heard" 2>"$0/log" & reader=$!
    chroot "$0" /takt pub weather hello --wait 60s && wait $reader' "$root" || { cat "$root/log"; fail "takt in an empty root"; }
[ "$(cat "$root/heard")" = hello ] || { cat "$root/log"; fail "takt in an empty root hears nothing"; }
echo "static: $out/takt runs in an empty root"
