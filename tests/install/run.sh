#!/usr/bin/env bash
# `make install`, `make uninstall` and the Debian packages, in staging directories and in a fresh Debian 12.
# Usage: tests/install/run.sh [staged|wheel|packages]   both without an argument; packages needs root and debootstrap
# By the environment: BUILD (target/debug)
set -euo pipefail
cd "$(dirname "$0")/../.."

export BUILD=${BUILD:-target/debug}
PROFILE=${PROFILE:-dev} scripts/preload.sh
unset PREFIX DESTDIR SYSCONFDIR BINDIR LIBDIR INCLUDEDIR UNITDIR MANDIR
top=$PWD
# shellcheck source=tests/debian.sh
source tests/debian.sh
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

fail() { echo "FAILED: $*" >&2; exit 1; }
step() { echo "-- $*"; }
expect() { # expect TEXT FILE
    grep -qF -- "$1" "$2" || { cat "$2" >&2; fail "$2 does not have \`$1\`"; }
}
refused() { # refused TEXT COMMAND...
    local text=$1
    shift
    if "$@" >"$work/out" 2>&1; then fail "accepted: $*"; fi
    expect "$text" "$work/out"
}

staged() {
    step "an installation neither builds nor fetches"
    mkdir "$work/path"
    for program in cargo rustc apt-get apt; do
        printf '#!/bin/sh\necho "$0 $*" >>%s/called\n' "$work" >"$work/path/$program"
        chmod 755 "$work/path/$program"
    done
    PATH=$work/path:$PATH make -s install DESTDIR="$work/a" BUILD="$BUILD" >/dev/null
    [ ! -e "$work/called" ] || fail "called: $(cat "$work/called")"

    step "the unit runs the program of its PREFIX"
    local root=$work/a
    expect "ExecStart=/usr/local/bin/taktd" "$root/usr/local/lib/systemd/system/taktd.service"
    for file in usr/local/bin/takt usr/local/lib/libtakt.so usr/local/include/takt.h usr/local/include/takt.hpp etc/takt/takt.toml \
        usr/local/share/man/man1/taktd.1 usr/local/share/man/man1/takt-run.1 \
        usr/local/share/bash-completion/completions/takt \
        usr/local/lib/libtakt_preload.so usr/local/lib/takt-preload/{lib,lib64,"lib/$(uname -m)-linux-gnu"}/libtakt_preload.so; do
        [ -e "$root/$file" ] || fail "$file is missing"
    done
    # Where it could be built: scripts/preload.sh has said if not.
    local musl='takt-preload/$LIB/libtakt_preload.so'
    [ ! -e "$BUILD/$musl" ] || [ -e "$root/usr/local/lib/$musl" ] || fail "$musl is missing"
    DESTDIR=$work/b PREFIX=/opt/takt scripts/install.sh install >/dev/null
    expect "ExecStart=/opt/takt/bin/taktd --config /opt/takt/etc/takt/takt.toml" \
        "$work/b/opt/takt/lib/systemd/system/taktd.service"
    [ "$(ls "$work/b")" = opt ] || fail "outside of PREFIX: $(ls "$work/b")"
    DESTDIR=$work/c PREFIX=/usr SYSCONFDIR=/srv/etc UNITDIR=/srv/units scripts/install.sh install >/dev/null
    expect "ExecStart=/usr/bin/taktd --config /srv/etc/takt/takt.toml" "$work/c/srv/units/taktd.service"
    if grep -rlE '@[A-Z_]+@' "$work/c"/usr/lib/{pkgconfig,cmake} "$work/c/srv"; then fail "a place was not filled in"; fi

    step "systemd reads the units"
    PREFIX=$work/live scripts/install.sh install >/dev/null
    if command -v systemd-analyze >/dev/null; then
        for unit in taktd takt-guest@ takt-uplink@; do
            systemd-analyze verify "$work/live/lib/systemd/system/$unit.service" 2>"$work/out" || true
            if grep -F "$unit" "$work/out"; then fail "systemd complains of the unit"; fi
        done
    fi
    "$work/live/bin/takt" preload --help >/dev/null
    man -l "$work/live/share/man/man1/takt.1" >/dev/null 2>&1 || [ ! -x /usr/bin/man ] || fail "man cannot read takt.1"

    step "a C program is built by pkg-config and by CMake, and runs"
    cp examples/c/publish.c "$work/publish.c"
    # shellcheck disable=SC2046
    cc "$work/publish.c" -o "$work/publish" $(PKG_CONFIG_PATH=$work/live/lib/pkgconfig pkg-config --cflags --libs takt) -lm
    [ "$(PKG_CONFIG_PATH=$work/live/lib/pkgconfig pkg-config --modversion takt)" = \
        "$("$work/live/bin/takt" --version | cut -d ' ' -f 2)" ] || fail "pkg-config has another version"
    LD_LIBRARY_PATH=$work/live/lib ldd "$work/publish" >"$work/out"
    expect "libtakt.so.0 => $work/live" "$work/out"
    printf 'cmake_minimum_required(VERSION 3.18)\nproject(p C)\nfind_package(takt 0.1 REQUIRED)\nadd_executable(publish publish.c)\ntarget_link_libraries(publish takt::takt m)\n' \
        >"$work/CMakeLists.txt"
    cmake -S "$work" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/live" >"$work/out" 2>&1 || { cat "$work/out"; fail cmake; }
    cmake --build "$work/cmake" >"$work/out" 2>&1 || { cat "$work/out"; fail "cmake --build"; }
    ldd "$work/cmake/publish" >"$work/out"
    expect "libtakt.so.0 => $work/live" "$work/out"

    step "a configuration that is there is kept"
    echo '# mine' >"$root/etc/takt/takt.toml"
    DESTDIR=$root scripts/install.sh install >"$work/out"
    expect "takt.toml is kept" "$work/out"
    expect '# mine' "$root/etc/takt/takt.toml"

    step "uninstall takes away everything but the configuration"
    DESTDIR=$root scripts/install.sh uninstall >/dev/null
    [ "$(cd "$root" && find . ! -type d)" = ./etc/takt/takt.toml ] || fail "left: $(cd "$root" && find . ! -type d)"
    PREFIX=$work/live scripts/install.sh uninstall >/dev/null

    step "what cannot work is refused by name"
    refused "\`local\`: write an absolute path" env PREFIX=local scripts/install.sh install
    refused "\`/opt/my takt\` has a blank" env PREFIX='/opt/my takt' scripts/install.sh install
    refused "run \`make build\` first" env BUILD="$work/nothing" DESTDIR="$work/d" scripts/install.sh install
    [ ! -e "$work/d" ] || fail "half an installation"
}

wheel() {
    step "the wheel installs into a fresh virtual environment"
    mkdir "$work/stripped"
    local library
    for library in libtakt.so libtakt_embedded.so; do strip -o "$work/stripped/$library" "$BUILD/$library"; done
    TAKT_LIBRARIES=$work/stripped python3 bindings/python/backend.py "$work/dist" >/dev/null
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" --quiet --disable-pip-version-check install --no-index "$work"/dist/takt-*.whl
    # Nothing but what is in the wheel: no node, no library of the system, no source tree.
    local python=(env -i -C "$work" PATH=/usr/bin:/bin XDG_RUNTIME_DIR="$work/runtime" TAKT_SOCKET="$work/none.sock" "$work/venv/bin/python")
    mkdir -m 700 "$work/runtime"

    step "the example of its README, literally"
    sed -n '/^```python/,/^```/{/^```/!p}' bindings/python/README.md >"$work/example.py"
    "${python[@]}" example.py >"$work/out" 2>&1 || { cat "$work/out"; fail "the example of bindings/python/README.md"; }
    [ "$(cat "$work/out")" = hello ] || { cat "$work/out"; fail "the example prints something else"; }

    step "type hints, asyncio and Ctrl-C"
    "${python[@]}" - <<'END' || fail "hints or asyncio"
import asyncio, pathlib, typing, takt

assert (pathlib.Path(takt.__file__).parent / "py.typed").exists(), "a type checker does not look at the package"
for call in (takt.Session.stream, takt.Stream.source, takt.Source.send, takt.Sink.receive, takt.Sink.receive_async):
    assert "return" in typing.get_type_hints(call), call

async def main():
    with takt.Session(embedded=True) as session, session.stream() as stream:
        with stream.source(7) as source, stream.sink(7) as sink:
            waiting = asyncio.ensure_future(sink.receive_async())
            await asyncio.sleep(0)
            source.send(b"hello")
            with await asyncio.wait_for(waiting, 60) as message:
                assert bytes(message.data) == b"hello"

asyncio.run(main())
END
    # By Python, since a shell has what it runs aside ignore SIGINT.
    "${python[@]}" - >"$work/err" 2>&1 <<'END' || { cat "$work/err"; fail "Ctrl-C"; }
import signal, subprocess, sys

code = "import signal, takt; signal.signal(signal.SIGINT, signal.default_int_handler); sink = takt.Session(embedded=True).stream().sink(7); print('waits', flush=True); sink.receive()"
program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
assert program.stdout.readline() == "waits\n", program.stderr.read()
program.send_signal(signal.SIGINT)
_, said = program.communicate(timeout=60)
assert "KeyboardInterrupt" in said and program.returncode != 0, said
END
}

packages() {
    [ "$(id -u)" -eq 0 ] || { echo "skipped: a chroot needs root"; return; }
    step "packing"
    OUT=$work/deb COMPRESSION=none scripts/deb.sh
    local fresh=$top/target/tools/bookworm root=$work/root
    if [ ! -e "$fresh/complete" ]; then
        step "a fresh Debian 12"
        rm -rf "$fresh"
        debootstrap --variant=minbase --include=iproute2 bookworm "$fresh" "$(mirror)" >"$work/out" 2>&1 \
            || { tail -n 20 "$work/out"; fail debootstrap; }
        touch "$fresh/complete"
    fi
    cp -a "$fresh" "$root"
    # Directories that dpkg itself makes and keeps are no leftovers.
    inventory() { (cd "$root" && find . -xdev ! -path './var/*' ! -path './dev/*' ! -path './proc/*' ! -name 'ld.so.cache*' \
        ! -path './tmp/*' ! -path './run/*' | sort); }
    # shellcheck disable=SC2016
    local inside=(unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8)

    inventory >"$work/before"
    cp -r "$work/deb" "$root/tmp/deb"
    step "the packages install"
    "${inside[@]}" sh -c 'dpkg -i /tmp/deb/*.deb' >"$work/out" 2>&1 || { cat "$work/out"; fail "dpkg -i"; }
    "${inside[@]}" dpkg --verify takt libtakt0 libtakt-dev takt-preload | { ! grep . ; } || fail "dpkg --verify"
    "${inside[@]}" sh -c 'ldconfig -p | grep libtakt.so.0 >/dev/null' || fail "the loader does not know libtakt.so.0"
    [ ! -e "$root/etc/systemd/system/multi-user.target.wants/taktd.service" ] || fail "the unit was enabled unasked"

    step "the programs run"
    "${inside[@]}" takt --version
    "${inside[@]}" taktd --check >/dev/null
    "${inside[@]}" takt preload -- /bin/true || fail "takt preload does not find its library"
    "${inside[@]}" sh -c 'set -e
        printf "[node]\nport = 0\naddress = \"127.0.0.1\"\n" >/tmp/takt.toml
        taktd --config /tmp/takt.toml 2>/tmp/taktd.log & daemon=$!
        i=0; until takt status >/dev/null 2>&1; do i=$((i+1)); [ $i -lt 600 ]; kill -0 $daemon; sleep 0.1; done
        takt sub 7 --count 1 >/tmp/heard & reader=$!
        takt pub 7 hello --wait 60s
        wait $reader
        kill $daemon; wait $daemon
        [ "$(cat /tmp/heard)" = hello ]' || { cat "$root/tmp/taktd.log"; fail "a message in the chroot"; }

    step "a changed configuration outlives an upgrade and a removal, not a purge"
    echo '# mine' >>"$root/etc/takt/takt.toml"
    "${inside[@]}" sh -c 'dpkg -i /tmp/deb/takt_*.deb' >/dev/null
    expect '# mine' "$root/etc/takt/takt.toml"
    "${inside[@]}" dpkg -r takt libtakt-dev libtakt0 takt-preload >/dev/null
    expect '# mine' "$root/etc/takt/takt.toml"
    "${inside[@]}" dpkg -P takt libtakt-dev libtakt0 takt-preload >/dev/null 2>&1
    inventory >"$work/after"
    diff "$work/before" "$work/after" || fail "the removal leaves something"

    step "make install in the system itself: the loader finds the library at once"
    mkdir "$root/src" "$root/src/build"
    cp -r scripts deploy include Cargo.toml "$root/src"
    cp "$BUILD"/{takt,taktd,libtakt.so,libtakt_embedded.so,libtakt_preload.so} "$root/src/build"
    "${inside[@]}" BUILD=build /src/scripts/install.sh install >/dev/null
    "${inside[@]}" sh -c 'ldconfig -p | grep /usr/local/lib/libtakt.so.0 >/dev/null' || fail "ldconfig was not run"
    "${inside[@]}" BUILD=build /src/scripts/install.sh uninstall >/dev/null
    if "${inside[@]}" sh -c 'ldconfig -p | grep libtakt'; then fail "the loader still knows the library"; fi
}

case ${1:-all} in
    staged) staged ;;
    packages) packages ;;
    wheel) wheel ;;
    all) staged; wheel; packages ;;
    *) echo "usage: $0 [staged|wheel|packages]" >&2; exit 2 ;;
esac
echo "installation: all holds"
