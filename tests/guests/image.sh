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

packages=()
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need tc iproute2
need ethtool ethtool
need modprobe kmod
need dpkg-deb dpkg
if [ ${#packages[@]} -gt 0 ]; then
    echo "guests: installing ${packages[*]}"
    if [ "$(id -u)" -eq 0 ]; then sudo=; else sudo=sudo; fi
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
if ldd "$(command -v busybox)" >/dev/null 2>&1; then
    echo "guests: busybox is not static: install busybox-static" >&2
    exit 1
fi

# The kernel: downloaded and unpacked here, not installed.
kernel=${KERNEL:-$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')}
if [ ! -d "$work/$kernel" ]; then
    echo "guests: downloading $kernel"
    rm -rf "$work/download"
    mkdir "$work/download"
    (cd "$work/download" && apt-get -o APT::Sandbox::User=root download -qq "$kernel")
    dpkg-deb -x "$work"/download/*.deb "$work/download/unpacked"
    mv "$work/download/unpacked" "$work/$kernel"
    rm -rf "$work/download"
fi
cp "$work/$kernel"/boot/vmlinuz-* "$work/vmlinuz"
version=$(basename "$work/$kernel"/lib/modules/*)
depmod -b "$work/$kernel" "$version"

root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,etc,lib/modules}
cp "$(command -v busybox)" "$root/bin/busybox"
with_libraries() { # with_libraries PROGRAM
    cp "$1" "$root/bin/"
    ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root/$(dirname "$library")"
        cp -nL "$library" "$root/$library" 2>/dev/null || true
    done
}
for program in ip tc ethtool; do
    with_libraries "$(command -v $program)"
done
for program in takt taktd; do
    with_libraries "$built/$program"
    strip "$root/bin/$program"
done
cc -std=gnu11 -O2 -static -D_GNU_SOURCE -o "$root/bin/talker" "$here/crates/interface/ingress/tests/programs/c/talker.c"
for module in virtio_pci virtio_net sch_mqprio sch_taprio sch_etf 8021q; do
    modprobe -d "$work/$kernel" -S "$version" --show-depends "$module" | awk '/^insmod/ { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
    case $file in
    *.xz) name=$(basename "$file" .xz) && xz -dc "$file" >"$root/lib/modules/$name" ;;
    *.zst) name=$(basename "$file" .zst) && zstd -qdc "$file" >"$root/lib/modules/$name" ;;
    *) name=$(basename "$file") && cp "$file" "$root/lib/modules/$name" ;;
    esac
    echo "$name"
done >"$root/lib/modules/order"
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
(cd "$root" && busybox find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd.gz"
echo "guests: Linux $version in $work"
