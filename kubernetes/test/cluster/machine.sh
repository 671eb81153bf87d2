#!/usr/bin/env bash
# Runs a command beside a whole Kubernetes of one node, as node.sh does, in an emulated machine of its own that is as nodes are: Debian 12 with
# systemd, which keeps the cgroups, cgroup v2 alone, and the distribution's kernel. machine.sh COMMAND..., with the environment of node.sh.
#
# Needs root and what build.sh makes; installs QEMU and debootstrap. KERNEL=linux-image-... takes another package, CPUS= and MEMORY= (MiB) another machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../.." && pwd)
export TAKT_CLUSTER_CACHE=${TAKT_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-cluster}
work=$top/target/machine
mkdir -p "$work"
# shellcheck source=tests/emulation.sh
source "$top/tests/emulation.sh"
# shellcheck source=tests/debian.sh
source "$top/tests/debian.sh"
need debootstrap debootstrap
need mke2fs e2fsprogs
need modprobe kmod
install_missing machine
# Newer than Debian 12's own, which does not have all that programs without preload need.
KERNEL=${KERNEL:-$(apt-cache depends linux-image-6.12-cloud-amd64 | awk '/Depends:/ { print $2; exit }')}
fetch_kernel machine "$work"
depmod -b "$unpacked" "$version"

base=$work/base
if [ ! -e "$base.complete" ]; then
    echo "machine: a fresh Debian 12"
    rm -rf "$base"
    debootstrap --variant=minbase --include=systemd-sysv,dbus,iproute2,openssl,procps,kmod,python3-minimal,libpython3-stdlib,libseccomp2,libssl3,iptables,ethtool,conmon,skopeo,containernetworking-plugins \
        bookworm "$base" "$(mirror)" >"$work/debootstrap.log" 2>&1 || { tail -n 20 "$work/debootstrap.log"; exit 1; }
    touch "$base.complete"
fi

# Its file system: what the command and node.sh use is where it is on this machine.
root=$work/root
rm -rf "$root"
cp -a --reflink=auto "$base" "$root"
mkdir -p "$root/lib/modules"
cp -a "$unpacked/lib/modules/$version" "$root/lib/modules/"
give() {
    for path; do
        mkdir -p "$root$(dirname "$path")"
        cp -aL "$path" "$root$path"
    done
}
give "$TAKT_CLUSTER_CACHE/bin" "$here/node.sh" "$(dirname "$1")" "$top/deploy/kubectl" "$top/deploy/helm/takt-node/monitoring" "$top/deploy/manifests" "$top/bindings/python"
if [ -n "${TAKT_TAKTD:-}" ]; then
    give "$TAKT_TAKTD" "$TAKT_BUILT/takt" "$TAKT_BUILT/libtakt.so" "$TAKT_BUILT/libtakt_preload.so"
    strip "$root$TAKT_TAKTD" "$root$TAKT_BUILT/takt"
fi
{
    compgen -A export TAKT_ | while read -r name; do printf 'export %s=%q\n' "$name" "${!name}"; done
    echo "export TAKT_MACHINE=1 HOME=/root PATH=$PATH"
    printf 'exec'
    printf ' %q' "$here/node.sh" "$@"
    echo
} >"$root/root/start"
cat >"$root/root/cluster" <<'INSIDE'
#!/bin/sh
# What is in it is said once.
echo "machine: Linux $(uname -r), $(systemctl --version | head -n 1), $(stat -fc %T /sys/fs/cgroup)"
status=0
bash /root/start || status=$?
[ $status -eq 0 ] || tail -n 30 /var/tmp/takt-cluster/kubelet.log "/var/tmp/takt-cluster/${TAKT_RUNTIME:-containerd}.log"
echo "machine: ended with $status"
systemctl poweroff --force --force
INSIDE
chmod +x "$root/root/cluster"
cat >"$root/etc/systemd/system/cluster.service" <<'UNIT'
[Unit]
Description=A cluster and its tests
After=dbus.service systemd-udevd.service

[Service]
ExecStart=/root/cluster
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
LimitNOFILE=1048576
TasksMax=infinity
Delegate=yes

[Install]
WantedBy=multi-user.target
UNIT
ln -sf /etc/systemd/system/cluster.service "$root/etc/systemd/system/multi-user.target.wants/cluster.service"
for unit in getty@tty1.service serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-timesyncd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
echo machine >"$root/etc/hostname"
echo "nameserver 127.0.0.1" >"$root/etc/resolv.conf"
printf 'br_netfilter\noverlay\nveth\nbridge\nvxlan\n' >"$root/etc/modules-load.d/cluster.conf"

# A file system in memory with the modules that the disk needs, then the disk.
first=$work/first
rm -rf "$first"
mkdir -p "$first"/{bin,sbin,dev,proc,sys,root,lib/modules}
cp "$(command -v busybox)" "$first/bin/busybox"
for module in virtio_pci virtio_blk ext4; do
    modprobe -d "$unpacked" -S "$version" --show-depends "$module" | awk '/^insmod/ { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
    copy_module "$file" "$first"
done >"$first/lib/modules/order"
cat >"$first/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /sbin
export PATH=/bin:/sbin
mount -t devtmpfs none /dev
while read -r module; do insmod "/lib/modules/$module"; done </lib/modules/order
until [ -b /dev/vda ]; do sleep 0.1; done
mount -t ext4 /dev/vda /root
mount -o move /dev /root/dev
exec switch_root /root /lib/systemd/systemd
INIT
chmod +x "$first/init"
pack "$first" "$work/initrd.gz"
size=$(du -s --apparent-size --block-size=1M "$root" | cut -f1)
rm -f "$work/disk"
mke2fs -q -t ext4 -O ^has_journal -d "$root" "$work/disk" "$((size + size / 4 + 4096))M"
rm -rf "$root"
echo "machine: starts"
timeout "${TAKT_EMULATED_SECONDS:-7200}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp "${CPUS:-2}" -m "${MEMORY:-6144}" -kernel "$unpacked"/boot/vmlinuz-* -initrd "$work/initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off systemd.show_status=false" -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" \
    -display none -monitor none -net none -no-reboot -serial stdio | stdbuf -oL tr -d '\r' | tee "$work/said"
rm -f "$work/disk"
grep -q '^machine: ended with 0$' "$work/said"
