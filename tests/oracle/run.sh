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

source ../emulation.sh
install_missing oracle
fetch_kernel oracle "$work"
image=$(echo "$unpacked"/boot/vmlinuz-*)
modules=$unpacked/lib/modules/$version

cargo build --release --quiet
target=${CARGO_TARGET_DIR:-target}/release

# The initial file system: busybox, iproute2, the modules, the guest's program and the cases.
root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,lib/modules}
cp "$(command -v busybox)" "$root/bin/busybox"
with_libraries "$root" ip
with_libraries "$root" tc
with_libraries "$root" "$target/oracle-guest"
for module in sch_mqprio_lib sch_mqprio sch_taprio sch_etf dummy veth; do
    # Built in, or not a module of this version, if there is none.
    file=$(find "$modules" -name "$module.ko*" -print -quit)
    [ -z "$file" ] || copy_module "$file" "$root" >/dev/null
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
pack "$root" "$work/initrd.gz"

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
