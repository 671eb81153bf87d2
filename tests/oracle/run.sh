#!/usr/bin/env bash
# Runs taprio and etf of a distribution's kernel beside takt-schedule. Needs no privileges once the
# packages are there. See README.md.
#
# Usage: tests/oracle/run.sh [SEED] [CASES]     (of each kind; 20261121 and 12 if not given)
#        KERNEL=linux-image-... tests/oracle/run.sh     another package of a kernel
#        SHIFT=3 tests/oracle/run.sh                    2^SHIFT ns for an instruction of the guest
set -euo pipefail
cd "$(dirname "$0")"
seed=${1:-20261121}
cases=${2:-12}
work=$PWD/work
mkdir -p "$work"

packages=()
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need tc iproute2
need dpkg-deb dpkg
if [ ${#packages[@]} -gt 0 ]; then
    echo "oracle: installing ${packages[*]}"
    if [ "$(id -u)" -eq 0 ]; then sudo=; else sudo=sudo; fi
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
if busybox --help >/dev/null && ldd "$(command -v busybox)" >/dev/null 2>&1; then
    echo "oracle: busybox is not static: install busybox-static" >&2
    exit 1
fi

# The kernel: downloaded and unpacked here, not installed.
kernel=${KERNEL:-$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')}
if [ ! -d "$work/$kernel" ]; then
    echo "oracle: downloading $kernel"
    rm -rf "$work/download"
    mkdir "$work/download"
    (cd "$work/download" && apt-get -o APT::Sandbox::User=root download -qq "$kernel")
    dpkg-deb -x "$work"/download/*.deb "$work/download/unpacked"
    mv "$work/download/unpacked" "$work/$kernel"
    rm -rf "$work/download"
fi
image=$(echo "$work/$kernel"/boot/vmlinuz-*)
modules=$(find "$work/$kernel" -type d -path '*/lib/modules/*' -prune)
version=$(basename "$modules")

cargo build --release --quiet
target=${CARGO_TARGET_DIR:-target}/release

# The initial file system: busybox, iproute2, the modules, the guest's program and the cases.
root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,lib/modules}
cp "$(command -v busybox)" "$root/bin/busybox"
with_libraries() { # with_libraries PROGRAM
    cp "$(command -v "$1")" "$root/bin/"
    ldd "$(command -v "$1")" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root/$(dirname "$library")"
        cp -n "$library" "$root/$library" 2>/dev/null || true
    done
}
with_libraries ip
with_libraries tc
with_libraries "$target/oracle-guest"
for module in sch_mqprio_lib sch_mqprio sch_taprio sch_etf dummy veth; do
    file=$(find "$modules" -name "$module.ko*" -print -quit)
    case $file in
    '') ;; # built in, or not a module of this version
    *.xz) xz -dc "$file" >"$root/lib/modules/$module.ko" ;;
    *.zst) zstd -qdc "$file" >"$root/lib/modules/$module.ko" ;;
    *) cp "$file" "$root/lib/modules/$module.ko" ;;
    esac
done
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/sbin
/bin/busybox --install -s /sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
for module in sch_mqprio_lib sch_mqprio sch_taprio sch_etf veth; do
    [ -e /lib/modules/$module.ko ] && insmod /lib/modules/$module.ko
done
insmod /lib/modules/dummy.ko numdummies=0
/bin/ip link add dummy0 numtxqueues 8 type dummy
/bin/ip link add veth0 numtxqueues 8 numrxqueues 8 type veth peer name veth1 numtxqueues 8 numrxqueues 8
mkdir -p /run
mount -t tmpfs none /run
/bin/ip netns add peer
/bin/ip link set veth1 netns peer
/bin/ip -n peer link set veth1 up
/bin/ip link set dummy0 up
/bin/ip link set veth0 up
stty -F /dev/ttyS1 raw 2>/dev/null
oracle-guest /cases.json /dev/ttyS1 && echo "oracle: done"
poweroff -f
INIT
chmod +x "$root/init"
options=()
if tc qdisc add dev lo root taprio help 2>&1 | grep -q max-sdu; then options+=(--max-sdu); fi
if printf '%s\n' "$version" 6.3 | sort -CV; then options+=(--cut); fi
"$target/oracle" make --seed "$seed" --cases "$cases" "${options[@]}" "$root/cases.json"
(cd "$root" && busybox find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd.gz"

echo "oracle: Linux $version, seed $seed, $cases cases of each kind"
rm -f "$work/results" "$work/console"
# Time inside follows the instructions executed, and nothing else: it is the same every time.
timeout 1800 qemu-system-x86_64 \
    -accel tcg,thread=single -smp 1 -icount shift="${SHIFT:-3}",sleep=off -rtc clock=vm \
    -m 512 -kernel "$image" -initrd "$work/initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 ipv6.disable=1" \
    -display none -monitor none -net none -no-reboot \
    -serial "file:$work/console" -serial "file:$work/results"
if ! grep -q "oracle: done" "$work/console"; then
    tail -n 30 "$work/console" >&2
    echo "oracle: the guest did not come to its end: see $work/console" >&2
    exit 1
fi
"$target/oracle" compare "$root/cases.json" "$work/results"
