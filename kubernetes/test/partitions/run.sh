#!/bin/sh
# Boots a distribution's kernel with cgroup v2 and four CPUs under emulation, and tries out cpuset partitions; or, as
# run.sh test, with three, and runs the tests of the backends that rest on them there; or, as run.sh whole, what a container with cores of its own gets.
# Needs qemu-system-x86, cpio and dpkg-deb; KERNEL=linux-image-... takes another package, SUITE=sid Debian's newest.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apt="-o APT::Sandbox::User=root"
if [ "${SUITE:-}" ]; then
	mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial"
	: >"$work/apt/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $SUITE main" >"$work/apt/sources.list"
	apt="$apt -o Dir::Etc::sourcelist=$work/apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State=$work/apt -o Dir::State::status=$work/apt/status -o Dir::Cache=$work/apt"
	apt-get $apt -qq update
fi
depends() { apt-cache $apt depends "$1" | awk -v of="$2" '$1 == "Depends:" && index($2, of) == 1 { print $2; exit }'; }
kernel=${KERNEL:-$(depends linux-image-cloud-amd64 linux-image-)}
# From Linux 7.2 on, Debian has the kernel itself in a package of its own.
(cd "$work" && apt-get $apt download -qq "$kernel" $(depends "$kernel" linux-binary-) && for deb in *.deb; do dpkg-deb -x "$deb" unpacked; done)
mkdir -p "$work/root/proc" "$work/root/sys" "$work/root/dev" "$work/root/tmp"
(cd "$here/../.." && CGO_ENABLED=0 go build -trimpath -o "$work/root/init" ./test/partitions)
(cd "$here/../.." && CGO_ENABLED=0 go test -c -trimpath -o "$work/root/enforce.test" ./internal/enforce)
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"
mode=${1:+takt.$1}
cpus=4
[ "$mode" != takt.test ] || cpus=3
timeout 1200 qemu-system-x86_64 -accel tcg -smp "$cpus" -m 768 -kernel "$(find "$work/unpacked" -type f -name 'vmlinuz*')" -initrd "$work/initrd.gz" \
	-append "console=ttyS0 quiet panic=-1 $mode" -display none -monitor none -net none -no-reboot -serial stdio |
	tr -d '\r' | tee "$work/said" | if [ "$mode" = takt.test ]; then cat; else grep '^experiment:'; fi
[ "$mode" != takt.test ] || grep -q '^test: <nil>' "$work/said"
