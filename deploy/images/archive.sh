#!/bin/sh
# Writes an image of a few files as a docker-archive: archive.sh OUTPUT.tar TAG ENTRYPOINT FILE|DIRECTORY...
# Files go to /, and what is in directories, under the names that it has there. Needs tar and sha256sum; no daemon, no registry, no root. The same files give the same
# bytes.
set -eu
output=$1 tag=$2 entrypoint=$3
shift 3
arch=${GOARCH:-$(go env GOARCH)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

archive() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -C "$1" -cf "$2" .; }

mkdir "$work/root" "$work/image"
for part; do
	if [ -d "$part" ]; then cp -R --preserve=mode,links "$part/." "$work/root"; else install -m 755 -t "$work/root" "$part"; fi
done
chmod 755 "$work/root"
archive "$work/root" "$work/image/layer.tar"
layer=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
cat >"$work/image/config.json" <<JSON
{"architecture":"$arch","os":"linux","created":"1970-01-01T00:00:00Z",
 "config":{"Entrypoint":["$entrypoint"],"WorkingDir":"/","Labels":{
  "org.opencontainers.image.licenses":"Apache-2.0",
  "org.opencontainers.image.source":"https://github.com/takt-dev/takt"}},
 "rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
JSON
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]\n' "$tag" >"$work/image/manifest.json"
case $output in /*) ;; *) output=$PWD/$output ;; esac
mkdir -p "$(dirname "$output")"
archive "$work/image" "$output"
echo "$output: $tag ($(du -h "$output" | cut -f1))"
