#!/usr/bin/env bash
# Builds the socket preload for programs of musl (Alpine's), and puts it beside the one for glibc so that each program's
# loader finds its own:
#   BUILD/takt-preload/libtakt_preload.so                       for glibc
#   BUILD/takt-preload/{lib,lib64,lib/MULTIARCH}/...            links to it: what glibc's loaders make of `$LIB` (ld.so(8))
#   BUILD/takt-preload/$LIB/libtakt_preload.so                  for musl, whose loader takes `$LIB` as it is written
# so LD_PRELOAD='BUILD/takt-preload/$LIB/libtakt_preload.so' serves both.
# Usage: scripts/preload.sh      without musl's compiler or standard library it says so and leaves its part out
# By the environment: PROFILE (release), BUILD (target/release), CARGO
set -euo pipefail
cd "$(dirname "$0")/.."

machine=$(uname -m)
target=$machine-unknown-linux-musl
profile=${PROFILE:-release}
build=${BUILD:-target/release}
tree=$build/takt-preload
name=libtakt_preload.so
left_out() { echo "preload: the library for programs of musl is left out: $*"; exit; }

mkdir -p "$tree/lib64" "$tree/lib/$machine-linux-gnu"
ln -sfn "../$name" "$tree/$name"
ln -sfn "../$name" "$tree/lib64/$name"
ln -sfn "../$name" "$tree/lib/$name"
ln -sfn "../../$name" "$tree/lib/$machine-linux-gnu/$name"

command -v musl-gcc >/dev/null || left_out "musl-gcc is missing: apt-get install musl-tools"
libdir=$(rustc --print target-libdir --target "$target")
if [ ! -d "$libdir" ]; then
    command -v rustup >/dev/null || left_out "the standard library for $target is missing, and there is no rustup to get it by"
    timeout 120 rustup target add "$target" || left_out "rustup cannot get the standard library for $target"
fi

# A directory of its own: flags differ from those of other builds.
export CARGO_TARGET_DIR=$PWD/target/preload
# The standard library asks for libgcc_s, which small images do not have: its own unwinder is linked in instead.
unwinder=$CARGO_TARGET_DIR/unwinder
mkdir -p "$unwinder"
echo "INPUT($libdir/self-contained/libunwind.a)" >"$unwinder/libgcc_s.so"
prefix=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$target")
export "${prefix}_LINKER=musl-gcc" "${prefix}_RUSTFLAGS=-C target-feature=-crt-static -C link-arg=-L$unwinder"
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS
${CARGO:-cargo} build --quiet -p takt-preload --target "$target" --profile "$profile"
folder=$profile
[ "$profile" != dev ] || folder=debug
built=$CARGO_TARGET_DIR/$target/$folder/$name

needed=$(readelf --dynamic "$built" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ "$needed" = libc.so ] || { echo "preload: $built needs more than musl: $needed" >&2; exit 1; }
mkdir -p "$tree/\$LIB"
install -m 644 "$built" "$tree/\$LIB/.$name"
mv "$tree/\$LIB/.$name" "$tree/\$LIB/$name" # at once: programs may have the former one loaded
