#!/usr/bin/env bash
# Makes what a virtual machine is started with: a distribution's kernel, and a file system in memory with busybox, iproute2, ethtool,
# Takt's programs and a talker that knows nothing of Takt. The guest does what is typed at its serial line.
#
# Usage: tests/guests/image.sh DIRECTORY      (the programs are those of target/debug, or of BUILT)
#        KERNEL=linux-image-... tests/guests/image.sh DIRECTORY     another package of a kernel
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
built=${BUILT:-$here/target/debug}
work=$(realpath -m "$1")
mkdir -p "$work"

source "$here/tests/emulation.sh"
need ethtool ethtool
need modprobe kmod
install_missing guests
fetch_kernel guests "$work"
cp "$unpacked"/boot/vmlinuz-* "$work/vmlinuz"

root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,etc,lib/modules}
cp "$(command -v busybox)" "$root/bin/busybox"
for program in ip tc ethtool; do
    with_libraries "$root" $program
done
for program in takt taktd; do
    with_libraries "$root" "$built/$program"
    strip "$root/bin/$program"
done
cc -std=gnu11 -O2 -static -D_GNU_SOURCE -o "$root/bin/talker" "$here/crates/interface/ingress/tests/programs/c/talker.c"
with_modules "$root" virtio_pci virtio_net sch_mqprio sch_taprio sch_etf 8021q
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin:/sbin HOME=/ PS1= PS2= ENV=/etc/profile
/bin/busybox --install -s /sbin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev 2>/dev/null
mkdir -p /dev/shm
for place in /run /tmp /dev/shm; do mount -t tmpfs none $place; done
# The shell would take busybox's own.
for program in ip tc; do echo "$program() { /bin/$program \"\$@\"; }"; done >/etc/profile
while read -r module; do insmod "/lib/modules/$module"; done </lib/modules/order
ip link set lo up
stty -F /dev/ttyS0 -echo
echo "guest: ready"
exec setsid sh -c 'exec sh </dev/ttyS0 >/dev/ttyS0 2>&1'
INIT
chmod +x "$root/init"
pack "$root" "$work/initrd.gz"
echo "guests: Linux $version in $work"
