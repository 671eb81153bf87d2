#!/usr/bin/env bash
# Installs what building and testing Takt needs on Debian 12 or Ubuntu and is missing here.
# Usage: scripts/setup.sh [build|bench]   (bench adds what the peers of the benchmarks need)
set -euo pipefail

want=${1:-build}
packages=()
need() { # need COMMAND-OR-FILE PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || packages+=("$2")
}

need cc build-essential
need clang clang
need /usr/include/bpf/bpf_helpers.h libbpf-dev
need ip iproute2
need ping iputils-ping
need tc iproute2
need nft nftables
need ethtool ethtool
need setpriv util-linux
# Programs that the socket preload is tested with.
need python3 python3
need curl curl
need iperf3 iperf3
need ssh-keygen openssh-client
need java default-jdk-headless
need isochron isochron
if [ "$want" = bench ]; then
    need /usr/include/zmq.h libzmq3-dev
    need pkg-config pkg-config
    need cmake cmake
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust with rustup first (https://rustup.rs)" >&2
    exit 1
fi

if [ ${#packages[@]} -gt 0 ]; then
    echo "setup: installing ${packages[*]}"
    if [ "$(id -u)" -eq 0 ]; then sudo=; else sudo=sudo; fi
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

# Tests talk to these. They are unpacked only: installed, one of them would take over the clock of this machine.
tools=$(cd "$(dirname "$0")/.." && pwd)/target/tools
unpack() { # unpack COMMAND PACKAGE
    if ! command -v "$1" >/dev/null 2>&1 && [ ! -e "$tools/usr/sbin/$1" ]; then
        echo "setup: unpacking $2 into $tools"
        mkdir -p "$tools"
        (
            cd "$tools"
            apt-get download -qq "$2" || { apt-get update -qq && apt-get download -qq "$2"; }
            dpkg-deb -x "$2"_*.deb .
            rm "$2"_*.deb
        )
    fi
}
unpack ptp4l linuxptp
unpack chronyd chrony
