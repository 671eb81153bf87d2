#!/usr/bin/env bash
# Installs what `make build` has built, and removes it again. Builds nothing and fetches nothing.
# Usage: scripts/install.sh install|uninstall
# Where to, by the environment:
#   PREFIX      /usr/local
#   DESTDIR     a staging directory in front of every path; none
#   SYSCONFDIR  /etc where PREFIX is /usr or /usr/local, else PREFIX/etc
#   BINDIR LIBDIR INCLUDEDIR UNITDIR MANDIR   below PREFIX
#   BUILD       directory of the built programs; target/release
set -euo pipefail
cd "$(dirname "$0")/.."

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
BUILD=${BUILD:-target/release}
for path in "$PREFIX" "$DESTDIR"; do
    case $path in
        *[[:space:]\"\'%\\\$]*)
            echo "install: \`$path\` has a blank, quote, backslash, % or \$: systemd and pkg-config would not read it; choose another" >&2
            exit 2 ;;
    esac
done
case $PREFIX in
    /usr | /usr/local) SYSCONFDIR=${SYSCONFDIR:-/etc} ;;
    /*) SYSCONFDIR=${SYSCONFDIR:-$PREFIX/etc} ;;
    *) echo "install: PREFIX is \`$PREFIX\`: write an absolute path such as /usr/local" >&2; exit 2 ;;
esac
BINDIR=${BINDIR:-$PREFIX/bin}
LIBDIR=${LIBDIR:-$PREFIX/lib}
INCLUDEDIR=${INCLUDEDIR:-$PREFIX/include}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
MANDIR=${MANDIR:-$PREFIX/share/man}
BASH_DIR=$PREFIX/share/bash-completion/completions
ZSH_DIR=$PREFIX/share/zsh/site-functions
FISH_DIR=$PREFIX/share/fish/vendor_completions.d
CONFIG=$SYSCONFDIR/takt/takt.toml
# taktd looks there by itself, and runs with defaults if the file is not there.
config_option=
[ "$SYSCONFDIR" = /etc ] || config_option=" --config $CONFIG"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ -n "$version" ] || { echo "install: no version in Cargo.toml" >&2; exit 1; }

# Puts the paths of this installation into a template.
fill() { # fill TEMPLATE MODE TARGET
    local text
    text=$(<"$1")
    text=${text//@BINDIR@/"$BINDIR"}
    text=${text//@LIBDIR@/"$LIBDIR"}
    text=${text//@INCLUDEDIR@/"$INCLUDEDIR"}
    text=${text//@CONFIG_OPTION@/"$config_option"}
    text=${text//@VERSION@/"$version"}
    install -D -m "$2" /dev/stdin "$DESTDIR$3" <<<"$text"
}

put() { # put MODE DIRECTORY FILE...
    local mode=$1 directory=$2
    shift 2
    install -D -m "$mode" -t "$DESTDIR$directory" "$@"
}

install_all() {
    for file in takt taktd libtakt.so libtakt_embedded.so libtakt_preload.so; do
        [ -e "$BUILD/$file" ] || { echo "install: $BUILD/$file is missing: run \`make build\` first" >&2; exit 1; }
    done
    put 755 "$BINDIR" "$BUILD/takt" "$BUILD/taktd"
    put 644 "$INCLUDEDIR" include/*.h include/*.hpp
    install -D -m 644 "$BUILD/libtakt.so" "$DESTDIR$LIBDIR/libtakt.so.0"
    ln -sf libtakt.so.0 "$DESTDIR$LIBDIR/libtakt.so"
    put 644 "$LIBDIR" "$BUILD/libtakt_embedded.so"
    # A library for each C library, which each loader finds: see scripts/preload.sh.
    local preload=$LIBDIR/takt-preload name=libtakt_preload.so multiarch
    multiarch=lib/$(uname -m)-linux-gnu
    put 644 "$preload" "$BUILD/$name"
    ln -sfn "takt-preload/$name" "$DESTDIR$LIBDIR/$name"
    install -d "$DESTDIR$preload/lib64" "$DESTDIR$preload/$multiarch"
    ln -sfn "../$name" "$DESTDIR$preload/lib64/$name"
    ln -sfn "../$name" "$DESTDIR$preload/lib/$name"
    ln -sfn "../../$name" "$DESTDIR$preload/$multiarch/$name"
    if [ -e "$BUILD/takt-preload/\$LIB/$name" ]; then
        put 644 "$preload/\$LIB" "$BUILD/takt-preload/\$LIB/$name"
    else
        echo "install: without the preload for programs of musl: scripts/preload.sh builds it"
    fi
    fill deploy/pkg-config/takt.pc.in 644 "$LIBDIR/pkgconfig/takt.pc"
    fill deploy/cmake/takt-config.cmake.in 644 "$LIBDIR/cmake/takt/takt-config.cmake"
    fill deploy/cmake/takt-config-version.cmake.in 644 "$LIBDIR/cmake/takt/takt-config-version.cmake"
    for unit in taktd takt-guest@ takt-uplink@; do
        fill "deploy/systemd/$unit.service" 644 "$UNITDIR/$unit.service"
    done

    # A configuration that is there is the operator's.
    if [ ! -e "$DESTDIR$CONFIG" ]; then
        install -D -m 644 deploy/takt.toml "$DESTDIR$CONFIG"
    else
        echo "install: $DESTDIR$CONFIG is kept"
    fi

    install -d "$DESTDIR$MANDIR/man1" "$DESTDIR$BASH_DIR" "$DESTDIR$ZSH_DIR" "$DESTDIR$FISH_DIR"
    "$BUILD/takt" man-pages "$DESTDIR$MANDIR/man1"
    "$BUILD/takt" completions bash >"$DESTDIR$BASH_DIR/takt"
    "$BUILD/takt" completions zsh >"$DESTDIR$ZSH_DIR/_takt"
    "$BUILD/takt" completions fish >"$DESTDIR$FISH_DIR/takt.fish"
    chmod 644 "$DESTDIR$BASH_DIR/takt" "$DESTDIR$ZSH_DIR/_takt" "$DESTDIR$FISH_DIR/takt.fish"

    settle
    echo "install: takt $version is in $DESTDIR$PREFIX"
    if [ -z "$DESTDIR" ]; then
        case $UNITDIR in
            /usr/lib/systemd/system | /lib/systemd/system | /usr/local/lib/systemd/system | /etc/systemd/system)
                echo "install: \`systemctl enable --now taktd\` starts the node with the system" ;;
            *) echo "install: \`systemctl enable --now $UNITDIR/taktd.service\` starts the node with the system" ;;
        esac
    fi
}

uninstall_all() {
    rm -f "$DESTDIR$BINDIR"/{takt,taktd} \
        "$DESTDIR$LIBDIR"/{libtakt.so.0,libtakt.so,libtakt_embedded.so,libtakt_preload.so} \
        "$DESTDIR$LIBDIR"/takt-preload/{,lib/,lib64/,lib/*/,'$LIB'/}libtakt_preload.so \
        "$DESTDIR$LIBDIR/pkgconfig/takt.pc" \
        "$DESTDIR$LIBDIR"/cmake/takt/takt-config{,-version}.cmake \
        "$DESTDIR$UNITDIR"/{taktd,takt-guest@,takt-uplink@}.service \
        "$DESTDIR$MANDIR"/man1/{takt,taktd}.1 "$DESTDIR$MANDIR"/man1/takt-*.1 \
        "$DESTDIR$BASH_DIR/takt" "$DESTDIR$ZSH_DIR/_takt" "$DESTDIR$FISH_DIR/takt.fish"
    for header in include/*.h include/*.hpp; do rm -f "$DESTDIR$INCLUDEDIR/$(basename "$header")"; done
    # Only what is empty and ours.
    if [ -d "$DESTDIR$LIBDIR/cmake/takt" ]; then rmdir --ignore-fail-on-non-empty "$DESTDIR$LIBDIR/cmake/takt"; fi
    if [ -d "$DESTDIR$LIBDIR/takt-preload" ]; then find "$DESTDIR$LIBDIR/takt-preload" -depth -type d -empty -delete; fi
    if [ -e "$DESTDIR$CONFIG" ]; then echo "uninstall: $DESTDIR$CONFIG is kept: remove it by hand"; fi
    settle
}

# What the system caches about the places that have changed; a staging directory is nobody's system.
settle() {
    [ -z "$DESTDIR" ] && [ "$(id -u)" -eq 0 ] || return 0
    if command -v ldconfig >/dev/null; then ldconfig; fi
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
}

case ${1:-} in
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) echo "usage: $0 install|uninstall" >&2; exit 2 ;;
esac
