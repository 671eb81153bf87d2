#!/bin/sh
# Writes the image of takt-node as a docker-archive: deploy/images/takt-node.sh [OUTPUT.tar [TAG]]
# It holds two static programs and nothing else. Needs go, tar and sha256sum; no daemon, no registry, no root.
# The same sources and the same Go give the same bytes.
#
#   ctr -n k8s.io images import takt-node.tar        onto a node
#   docker load -i takt-node.tar                     or podman load
#   skopeo copy docker-archive:takt-node.tar docker://registry.example.com/takt-node:0.1.0
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-takt-node.tar}
tag=${2:-ghcr.io/takt-dev/takt-node:0.1.0}
arch=${GOARCH:-$(go env GOARCH)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

archive() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -C "$1" -cf "$2" .; }

mkdir "$work/root" "$work/image"
for program in takt-node takt-gate; do
	(cd "$here/../../kubernetes" && CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false -ldflags=-s \
		-o "$work/root/$program" "./cmd/$program")
done
chmod 755 "$work/root" "$work/root/takt-node" "$work/root/takt-gate"
archive "$work/root" "$work/image/layer.tar"
layer=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
cat >"$work/image/config.json" <<JSON
{"architecture":"$arch","os":"linux","created":"1970-01-01T00:00:00Z",
 "config":{"Entrypoint":["/takt-node"],"WorkingDir":"/","Labels":{
  "org.opencontainers.image.title":"takt-node","org.opencontainers.image.licenses":"Apache-2.0",
  "org.opencontainers.image.source":"https://github.com/takt-dev/takt"}},
 "rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
JSON
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]\n' "$tag" >"$work/image/manifest.json"
case $output in /*) ;; *) output=$PWD/$output ;; esac
archive "$work/image" "$output"
echo "$output: $tag ($(du -h "$output" | cut -f1))"
