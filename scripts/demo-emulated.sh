#!/usr/bin/env bash
# The isochronous talker in an emulated machine whose time is that of the instructions that it executes: with a distribution's
# kernel, and so beside that kernel's own etf and taprio. Needs no privileges once the packages are there.
#
# Usage: scripts/demo-emulated.sh DIRECTORY     where the report goes (the programs are those of target/release, or of BUILT)
#        KERNEL=linux-image-... scripts/demo-emulated.sh DIRECTORY     another package of a kernel
#        SHIFT=0 OPTIONS="--sizes 256 ..." scripts/demo-emulated.sh DIRECTORY
#            2^SHIFT ns for an instruction of the machine; other options for `takt bench isochronous`
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
built=${BUILT:-$here/target/release}
shift=${SHIFT:-0}
# Slower than the demo's link: one core sends, switches and receives.
options=${OPTIONS:---sizes 256 --rate 100000000 --seconds 1 --rounds 3}
out=$(realpath -m "$1")
work=$here/target/emulated
mkdir -p "$work" "$out"

source "$here/tests/emulation.sh"
need modprobe kmod
install_missing demo
fetch_kernel demo "$work"

root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,out,lib/modules}
cp "$(command -v busybox)" "$root/bin/busybox"
for program in ip tc bridge "$built/takt"; do
    with_libraries "$root" "$program"
done
# It needs no library that `takt` does not.
cp "$built/libtakt_preload.so" "$root/lib/"
strip "$root/bin/takt" "$root/lib/libtakt_preload.so"
with_modules "$root" veth bridge vxlan sch_tbf sch_htb cls_u32 sch_taprio sch_etf
cat >"$root/init" <<INIT
#!/bin/busybox sh
export PATH=/bin:/sbin
/bin/busybox --install -s /sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
mkdir -p /dev/shm
for place in /run /tmp /dev/shm; do mount -t tmpfs none \$place; done
while read -r module; do insmod "/lib/modules/\$module"; done </lib/modules/order
/bin/ip link set lo up
takt bench isochronous --virtual-time $options --out /out >/out/isochronous.txt && echo "demo: done"
stty -F /dev/ttyS1 raw 115200
tar -C /out -cz . >/dev/ttyS1
poweroff -f
INIT
chmod +x "$root/init"
pack "$root" "$work/initrd.gz"

echo "demo: Linux $version, $((1 << shift)) ns for an instruction; a few minutes"
rm -f "$work/report.tar.gz"
# Time inside follows the instructions executed, and nothing else: what else this machine does changes nothing.
timeout 3600 qemu-system-x86_64 \
    -accel tcg,thread=single -smp 1 -cpu qemu64,+rdrand -icount shift="$shift",sleep=off -rtc clock=vm \
    -m 1024 -kernel "$(echo "$unpacked"/boot/vmlinuz-*)" -initrd "$work/initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 clocksource=tsc tsc=reliable" \
    -display none -monitor none -net none -no-reboot \
    -serial stdio -serial "file:$work/report.tar.gz" </dev/null | tr -d '\r' | tee "$work/console"
if ! grep -q "demo: done" "$work/console"; then
    echo "demo: the machine did not come to its end: see $work/console" >&2
    exit 1
fi
tar -C "$out" -xzf "$work/report.tar.gz"
cat "$out/isochronous.txt"
echo "demo: report in $out/isochronous.html"
