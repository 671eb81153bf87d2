# shellcheck shell=bash
# What the scripts share that make a fresh Debian; read by them (`source`).

# mirror: DEBIAN_MIRROR, or the mirror that this machine uses itself.
mirror() {
    local found
    found=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -v security | head -n 1)
    echo "${DEBIAN_MIRROR:-${found:-http://deb.debian.org/debian}}"
}
