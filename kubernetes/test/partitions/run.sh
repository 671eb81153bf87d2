#!/bin/sh
# Boots a distribution's kernel with cgroup v2 and two CPUs under emulation, and tries out cpuset partitions; or, as
# run.sh test, with three, and runs the tests of the backend deadline-partition there.
# Needs qemu-system-x86, cpio and dpkg-deb; KERNEL=linux-image-... takes another package.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kernel=${KERNEL:-$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')}
(cd "$work" && apt-get -o APT::Sandbox::User=root download -qq "$kernel" && dpkg-deb -x ./*.deb .)
mkdir -p "$work/root/proc" "$work/root/sys" "$work/root/dev" "$work/root/tmp"
(cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -o "$work/root/init" ./test/partitions)
(cd "$here/../.." && CGO_ENABLED=0 go test -c -trimpath -o "$work/root/enforce.test" ./internal/enforce)
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"
mode=${1:+takt.$1}
cpus=${1:+3}
timeout 1200 qemu-system-x86_64 -accel tcg -smp ${cpus:-2} -m 768 -kernel "$work"/boot/vmlinuz-* -initrd "$work/initrd.gz" \
	-append "console=ttyS0 quiet panic=-1 $mode" -display none -monitor none -net none -no-reboot -serial stdio |
	tr -d '\r' | tee "$work/said" | if [ "$mode" ]; then cat; else grep '^experiment:'; fi
[ "$mode" != takt.test ] || grep -q '^test: <nil>' "$work/said"
