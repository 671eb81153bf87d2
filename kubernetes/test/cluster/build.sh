#!/bin/sh
# Builds what a cluster of one node needs into a cache, from the Go module proxy and apt alone: Kubernetes,
# etcd, containerd, runc, two network plugins. About a quarter of an hour on two cores, once per machine.
# With the argument api: etcd and kube-apiserver alone, which the tests of package apitest need; about five minutes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${TAKT_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-cluster}
mkdir -p "$cache/bin"

# step NAME VERSION COMMAND...: runs the command unless this version is there already.
step() {
	name=$1 version=$2
	shift 2
	if [ -x "$cache/bin/$name" ] && [ "$(cat "$cache/$name.version" 2>/dev/null)" = "$version" ]; then
		return
	fi
	echo "building $name $version ($(date +%T))"
	"$@"
	echo "$version" >"$cache/$name.version"
}

module() { (cd "$here/$1" && CGO_ENABLED=0 go build -trimpath -ldflags=-s -o "$cache/bin/$1" .); }
program() { GOFLAGS="${GOFLAGS:-} -trimpath" CGO_ENABLED=0 GOBIN="$cache/bin" go install "$1"; }
runc() {
	if ! [ -f /usr/include/seccomp.h ]; then
		apt-get update -qq
		apt-get install -y -qq libseccomp-dev pkg-config gcc >/dev/null
	fi
	GOBIN="$cache/bin" CGO_ENABLED=1 go install -trimpath -tags "seccomp netgo osusergo" \
		-ldflags "-extldflags -static -X main.version=1.5.2" github.com/opencontainers/runc@v1.5.2
}

# CRI-O, whose module has no replacements, where the module cache has it; and its helper, in C.
crio() {
	version=v1.34.0
	source=$(cd "$here/etcd" && go mod download -json "github.com/cri-o/cri-o@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	if ! [ -f /usr/include/seccomp.h ]; then
		apt-get update -qq
		apt-get install -y -qq libseccomp-dev pkg-config gcc >/dev/null
	fi
	(cd "$source" && go build -trimpath -buildvcs=false -ldflags=-s -o "$cache/bin/crio" \
		-tags "containers_image_openpgp exclude_graphdriver_btrfs exclude_graphdriver_devicemapper seccomp" ./cmd/crio)
	gcc -std=c99 -Os -static -o "$cache/bin/pinns" "$source"/pinns/src/*.c
}

# All of Kubernetes. It says which version it is: Helm installs no chart in a cluster of an unknown one.
kube() {
	version=$(cd "$here/kube" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
	(cd "$here/kube" && CGO_ENABLED=0 go build -trimpath -o "$cache/bin/kube" \
		-ldflags "-s -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/client-go/pkg/version.gitVersion=$version" .)
}

apiserver() { (cd "$here/kube" && CGO_ENABLED=0 go build -trimpath -ldflags=-s -o "$cache/bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver); }

step etcd "$(sha256sum "$here/etcd/go.sum" | cut -c1-12)" module etcd
if [ "${1:-}" = api ]; then
	step kube-apiserver "$(sha256sum "$here/kube/go.sum" | cut -c1-12)" apiserver
	echo "$cache/bin"
	exit
fi
containerd=v2.4.2
plugins=v1.9.1
step containerd $containerd program github.com/containerd/containerd/v2/cmd/containerd@$containerd
step containerd-shim-runc-v2 $containerd program github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@$containerd
step ctr $containerd program github.com/containerd/containerd/v2/cmd/ctr@$containerd
step runc v1.5.2 runc
for name in main/bridge main/loopback ipam/host-local; do
	step "$(basename $name)" $plugins program github.com/containernetworking/plugins/plugins/$name@$plugins
done
if [ "${1:-}" = crio ]; then
	step crio v1.34.0 crio
fi
if [ "${1:-}" = kuberay ]; then
	# The operator, whose images are in no registry of packages, and the DNS that Ray's workers find their head by.
	step ray-operator v1.5.0 program github.com/ray-project/kuberay/ray-operator@v1.5.0
	step coredns v1.12.4 program github.com/coredns/coredns@v1.12.4
fi
step kube "$(sha256sum "$here/kube/go.sum" "$here/kube/main.go" | sha256sum | cut -c1-12)-versioned" kube
echo "$cache/bin"
