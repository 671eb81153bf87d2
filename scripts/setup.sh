#!/usr/bin/env bash
# Installs what building and testing Takt needs on Debian 12 or Ubuntu and is missing here. With nothing missing it does
# not touch apt.
# Usage: scripts/setup.sh [build|test|bench|datapaths]
#   build  to build, and to run the demo (the default)
#   test   besides, the programs that tests run, and all that datapaths needs
#   bench  besides build, what the peers of the benchmarks need
#   datapaths  besides build, the libraries of the datapaths that are built apart
set -euo pipefail

want=${1:-build}
packages=()
need() { # need COMMAND-OR-FILE PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || packages+=("$2")
}

case $want in
    build | test | bench | datapaths) ;;
    *) echo "usage: $0 [build|test|bench|datapaths]" >&2; exit 2 ;;
esac
need cc build-essential
need clang clang
# The preload for programs of musl.
need musl-gcc musl-tools
need /usr/include/bpf/bpf_helpers.h libbpf-dev
# The lab, and with it the demo and the benchmarks.
need ip iproute2
need tc iproute2
if [ "$want" = test ]; then
    need ethtool ethtool
    need ping iputils-ping
    need nft nftables
    need setpriv util-linux
    # The installation and the packages are tested with these.
    need pkg-config pkg-config
    need cmake cmake
    need debootstrap debootstrap
    # Programs that the socket preload is tested with.
    need python3 python3
    # The wheel is tested in a virtual environment.
    python3 -c "import ensurepip" 2>/dev/null || packages+=(python3-venv)
    # Pages are looked at by it.
    need chromium chromium
    need curl curl
    need iperf3 iperf3
    need sockperf sockperf
    need busybox busybox
    need node nodejs
    need strace strace
    # Sends and shows streams of takt.
    need gst-launch-1.0 gstreamer1.0-tools
    need "/usr/lib/$(uname -m)-linux-gnu/gstreamer-1.0/libgstrtp.so" gstreamer1.0-plugins-good
    need "/usr/lib/$(uname -m)-linux-gnu/gstreamer-1.0/libgstvideotestsrc.so" gstreamer1.0-plugins-base
    need ssh-keygen openssh-client
    need java default-jdk-headless
    need isochron isochron
    # The switch that the datapath over DPDK is tested behind.
    need /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk openvswitch-switch-dpdk
    # Captures of others, and what others read in them.
    need tshark tshark
    need pmacctd pmacct
    need /usr/share/sip-tester/g711a.pcap sip-tester
fi
if [ "$want" = bench ]; then
    need /usr/include/zmq.h libzmq3-dev
    need /usr/include/dds/dds.h cyclonedds-dev
    need idlc cyclonedds-tools
    # Aeron is a jar of Maven's central repository, which Ivy fetches.
    need javac default-jdk-headless
    need /usr/share/java/ivy.jar ivy
    need pkg-config pkg-config
    need cmake cmake
fi

if [ "$want" = datapaths ] || [ "$want" = test ]; then
    need pkg-config pkg-config
    # With the drivers of its virtual devices.
    need /usr/include/dpdk/rte_ethdev.h libdpdk-dev
    need /usr/include/rdma/fabric.h libfabric-dev
    # What programs for AF_XDP alone are written with.
    need /usr/include/xdp/xsk.h libxdp-dev
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust with rustup first (https://rustup.rs)" >&2
    exit 1
fi

if [ ${#packages[@]} -gt 0 ]; then
    echo "setup: installing ${packages[*]}"
    if [ "$(id -u)" -eq 0 ]; then sudo=; else sudo=sudo; fi
    export DEBIAN_FRONTEND=noninteractive
    # Another apt (unattended upgrades, on a machine that has just started) may hold the lock for minutes.
    wait=(-o DPkg::Lock::Timeout=600)
    # The lists have a lock of their own, for which that option does not wait.
    for ((try = 0; ; try++)); do
        if answer=$($sudo apt-get "${wait[@]}" update -qq 2>&1); then break; fi
        if [ "$try" -ge 60 ] || [[ $answer != *"/var/lib/apt/lists/lock"* ]]; then
            echo "$answer" >&2
            echo "setup: \`apt-get update\` fails: see above" >&2
            exit 1
        fi
        [ "$try" -gt 0 ] || echo "setup: waiting for another apt to finish"
        sleep 10
    done
    $sudo apt-get "${wait[@]}" install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

[ "$want" = test ] || exit 0
# Tests talk to these. They are unpacked only: installed, one of them would take over the clock of this machine, and another
# one its port 80.
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
unpack nginx nginx
