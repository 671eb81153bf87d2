#!/usr/bin/env bash
# The daemon beside taprio of a distribution's kernel: what it makes of it, and where in the cycle others send then. Needs no
# privileges once the packages are there. See README.md.
#
# Usage: tests/oracle/others.sh                      (the programs are those of target/release, or of BUILT)
#        KERNEL=linux-image-... tests/oracle/others.sh     another package of a kernel
#        SHIFT=3 tests/oracle/others.sh                    2^SHIFT ns for an instruction of the guest
set -euo pipefail
cd "$(dirname "$0")"
built=${BUILT:-$PWD/../../target/release}
work=$PWD/work
mkdir -p "$work"

source ../emulation.sh
need modprobe kmod
install_missing others
fetch_kernel others "$work"
cargo build --release --quiet
target=${CARGO_TARGET_DIR:-target}/release

root=$work/others-root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,lib/modules}
cp "$(command -v busybox)" "$root/bin/busybox"
for program in ip tc "$built/takt" "$built/taktd" "$target/oracle-others"; do
    with_libraries "$root" "$program"
done
strip "$root/bin/takt" "$root/bin/taktd"
with_modules "$root" veth sch_taprio
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/sbin
/bin/busybox --install -s /sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
mkdir -p /dev/shm
for place in /run /tmp /dev/shm; do mount -t tmpfs none $place; done
while read -r module; do insmod "/lib/modules/$module"; done </lib/modules/order
/bin/ip link set lo up
/bin/ip netns add peer
/bin/ip link add veth0 numtxqueues 4 numrxqueues 4 type veth peer name veth1 numtxqueues 4 numrxqueues 4
/bin/ip link set veth1 netns peer
/bin/ip -n peer link set lo up
/bin/ip -n peer link set veth1 up
/bin/ip link set veth0 up
oracle-others && echo "others: done"
poweroff -f
INIT
chmod +x "$root/init"
pack "$root" "$work/others-initrd.gz"

echo "others: Linux $version; some minutes"
# Time inside follows the instructions executed, and nothing else: what else this machine does changes nothing.
timeout 3600 qemu-system-x86_64 \
    -accel tcg,thread=single -smp 1 -cpu qemu64,+rdrand -icount shift="${SHIFT:-3}",sleep=off -rtc clock=vm \
    -m 1024 -kernel "$(echo "$unpacked"/boot/vmlinuz-*)" -initrd "$work/others-initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 clocksource=tsc tsc=reliable" \
    -display none -monitor none -net none -no-reboot \
    -serial stdio </dev/null | tr -d '\r' | tee "$work/others-console"
if ! grep -q "others: done" "$work/others-console"; then
    echo "others: the machine did not come to its end: see $work/others-console" >&2
    exit 1
fi
