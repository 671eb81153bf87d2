#!/usr/bin/env bash
# Installs what building and testing Takt needs on Debian 12 or Ubuntu and is missing here. With nothing missing it does
# not touch apt.
# Usage: scripts/setup.sh [build|test|bench]
#   build  to build, and to run the demo (the default)
#   test   besides, the programs that tests run
#   bench  besides build, what the peers of the benchmarks need
set -euo pipefail

want=${1:-build}
packages=()
need() { # need COMMAND-OR-FILE PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || packages+=("$2")
}

case $want in
    build | test | bench) ;;
    *) echo "usage: $0 [build|test|bench]" >&2; exit 2 ;;
esac
need cc build-essential
need clang clang
need /usr/include/bpf/bpf_helpers.h libbpf-dev
# The lab, and with it the demo and the benchmarks.
need ip iproute2
need tc iproute2
need nft nftables
need ethtool ethtool
need setpriv util-linux
# Programs that the socket preload is tested with.
need python3 python3
need curl curl
need iperf3 iperf3
need strace strace
need ssh-keygen openssh-client
need java default-jdk-headless
need isochron isochron
