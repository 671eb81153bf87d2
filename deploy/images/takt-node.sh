#!/bin/sh
# Writes the image of takt-node as a docker-archive: deploy/images/takt-node.sh [OUTPUT.tar [TAG]]
# It holds four static programs and nothing else: the agent, what it installs on the node, and the controller. Needs go, tar and sha256sum; no daemon, no registry, no root.
# The same sources and the same Go give the same bytes.
#
#   ctr -n k8s.io images import --local takt-node.tar    onto a node
#   docker load -i takt-node.tar                         or podman load
#   skopeo copy docker-archive:takt-node.tar docker://registry.example.com/takt-node:0.1.0
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-takt-node.tar}
tag=${2:-ghcr.io/takt-dev/takt-node:0.1.0}
GOARCH=${GOARCH:-$(go env GOARCH)}
export GOARCH
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
for program in takt-node takt-gate takt-cni takt-controller; do
	(cd "$here/../../kubernetes" && CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs=false -tags=grpcnotrace -ldflags=-s \
		-o "$programs/$program" "./cmd/$program")
done
"$here/archive.sh" "$output" "$tag" /takt-node "$programs/takt-node" "$programs/takt-gate" "$programs/takt-cni" "$programs/takt-controller"
