# shellcheck shell=bash
# What the scripts share that start machines under emulation; read by them (`source`).

packages=()

# need COMMAND PACKAGE: to be installed by `install_missing` if it is not there.
need() {
    command -v "$1" >/dev/null 2>&1 || packages+=("$2")
}

# install_missing NAME: installs what was needed and is not there; NAME says who does.
install_missing() {
    need qemu-system-x86_64 qemu-system-x86
    need busybox busybox-static
    need tc iproute2
    need dpkg-deb dpkg
    if [ ${#packages[@]} -gt 0 ]; then
        echo "$1: installing ${packages[*]}"
        if [ "$(id -u)" -eq 0 ]; then sudo=; else sudo=sudo; fi
        export DEBIAN_FRONTEND=noninteractive
        $sudo apt-get update -qq
        $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    fi
    if busybox --help >/dev/null && ldd "$(command -v busybox)" >/dev/null 2>&1; then
        echo "$1: busybox is not static: install busybox-static" >&2
        exit 1
    fi
}

# fetch_kernel NAME WORK: a distribution's kernel, downloaded and unpacked in WORK and not installed; KERNEL names another package than the
# distribution's usual one. Sets `unpacked`, where its files are, and `version`.
fetch_kernel() {
    local kernel=${KERNEL:-$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')}
    unpacked=$2/$kernel
    if [ ! -d "$unpacked" ]; then
        echo "$1: downloading $kernel"
        rm -rf "$2/download"
        mkdir -p "$2/download"
        (cd "$2/download" && apt-get -o APT::Sandbox::User=root download -qq "$kernel")
        dpkg-deb -x "$2"/download/*.deb "$2/download/unpacked"
        mv "$2/download/unpacked" "$unpacked"
        rm -rf "$2/download"
    fi
    version=$(basename "$unpacked"/lib/modules/*)
}

# with_libraries ROOT PROGRAM: copies a program and the libraries that it is linked with into a machine's file system.
with_libraries() {
    cp "$(command -v "$2")" "$1/bin/"
    ldd "$(command -v "$2")" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$1/$(dirname "$library")"
        cp -nL "$library" "$1/$library" 2>/dev/null || true
    done
}

# copy_module FILE ROOT: a module of the kernel, unpacked; says its name.
copy_module() {
    local name
    name=$(basename "$1")
    name=${name%.ko*}.ko
    case $1 in
    *.xz) xz -dc "$1" >"$2/lib/modules/$name" ;;
    *.zst) zstd -qdc "$1" >"$2/lib/modules/$name" ;;
    *) cp "$1" "$2/lib/modules/$name" ;;
    esac
    echo "$name"
}

# with_modules ROOT MODULE...: modules of the kernel and what they need; `lib/modules/order` names them in the order to load them.
with_modules() {
    local root=$1
    shift
    depmod -b "$unpacked" "$version"
    for module in "$@"; do
        modprobe -d "$unpacked" -S "$version" --show-depends "$module" | awk '/^insmod/ { print $2 }'
    done | awk '!seen[$0]++' | while read -r file; do
        copy_module "$file" "$root"
    done >"$root/lib/modules/order"
}

# pack ROOT FILE: the file system in memory that a machine is started with.
pack() {
    (cd "$1" && busybox find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$2"
}
