#!/bin/sh
# Runs the tests in a cluster whose agent has a certain backend: run.sh BACKEND [TEST-FLAG...]. What they need
# has been built into bin/. With TAKT_MANUAL nothing of Takt is in the cluster: the test does what the manual says.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$(cd "$here/../../bin" && pwd)
TAKT_BACKEND=$1
shift
export TAKT_BACKEND
# A partitioned machine must keep a core for itself.
cores=all
[ "$TAKT_BACKEND" != deadline-partition ] || cores='"1"'
# With taktd, the agent gives pods their runtime: the preload for glibc and musl, where both have been built.
preload=${TAKT_BUILT:-}/libtakt_preload.so
if [ -d "${TAKT_BUILT:-}/takt-preload" ]; then
	# As it is installed: what is built has links to elsewhere.
	preload=$bin/preload
	rm -rf "$preload"
	cp -RL "$TAKT_BUILT/takt-preload" "$preload"
fi
network=
objects=
[ "${TAKT_NODES:-1}" = 1 ] || { objects=", objects: true" cores=${TAKT_CORES:-none}; }
[ -z "${TAKT_MANUAL:-}" ] || cores=all
[ -z "${TAKT_TAKTD:-}" ] || network=", metrics: {taktd: 9465}, network: {enabled: true, preload: $preload, library: $TAKT_BUILT/libtakt.so, takt: $TAKT_BUILT/takt$objects}"
# Two nodes of which each gives a core of its own have a release each.
where= second="nodeSelector: {pool: other}" seconds=all
if [ -n "${TAKT_EACH:-}" ]; then
	cores='"0"' where=", nodeSelector: {kubernetes.io/hostname: node-1}"
	seconds='"1"' second="nodeSelector: {kubernetes.io/hostname: node-2}"
fi
echo "{config: {cores: $cores, backend: $TAKT_BACKEND, podRequests: warn${TAKT_ADMISSION:+, admission: $TAKT_ADMISSION}}, image: {pullPolicy: Never}$network$where}" >"$bin/values.yaml"
(cd "$here/../chart" && go run ./render "$here/../../../deploy/helm/takt-node" "$bin/values.yaml" kube-system >"$bin/chart.yaml")
[ -z "$objects" ] || cat "$here"/../../../deploy/helm/takt-node/crds/*.yaml >>"$bin/chart.yaml"
# The same release while it is uninstalled.
sed 's/^{/{uninstall: true, /' "$bin/values.yaml" >"$bin/leaving.yaml"
(cd "$here/../chart" && go run ./render "$here/../../../deploy/helm/takt-node" "$bin/leaving.yaml" kube-system >"$bin/leaving-chart.yaml")
export TAKT_LEAVING_CHART="$bin/leaving-chart.yaml"
# What the Prometheus operator is told: its kinds are not in the cluster.
sed 's/^{/{monitoring: {podMonitor: true, rules: true}, /' "$bin/values.yaml" >"$bin/watched.yaml"
(cd "$here/../chart" && go run ./render "$here/../../../deploy/helm/takt-node" "$bin/watched.yaml" kube-system >"$bin/watched-chart.yaml")
export TAKT_WATCHED_CHART="$bin/watched-chart.yaml"
# A release for other nodes, which shares the device class.
echo "{config: {cores: $seconds, backend: $TAKT_BACKEND, podRequests: warn}, image: {pullPolicy: Never}, deviceClass: {create: false}, $second}" >"$bin/second.yaml"
(cd "$here/../chart" && go run ./render "$here/../../../deploy/helm/takt-node" "$bin/second.yaml" kube-system takt-node-other >"$bin/second-chart.yaml")
export TAKT_SECOND_CHART="$bin/second-chart.yaml"
TAKT_COLUMNS=$(cd "$here/../../../deploy/kubectl" && pwd)/reservations.columns
export TAKT_COLUMNS
# kubectl takt.
export PATH="$bin:$PATH"
# The chart's dashboards, and a Prometheus to try them with.
TAKT_MONITORING=$(cd "$here/../../../deploy/helm/takt-node/monitoring" && pwd)
export TAKT_MONITORING
[ ! -x "$bin/prometheus" ] || export TAKT_PROMETHEUS="$bin/prometheus"
# Python programs in pods.
TAKT_BINDINGS=$(cd "$here/../../../bindings/python" && pwd)
export TAKT_BINDINGS
images="$bin/guest.tar $bin/musl.tar $bin/takt-node.tar"
# With taktd, its image too, for what runs beside it in a pod.
manifests=$(cd "$here/../../../deploy/manifests" && pwd)
if [ -n "${TAKT_BUILT:-}" ] && [ -n "${TAKT_TAKTD:-}${TAKT_MANUAL:-}" ]; then
	BUILT=$TAKT_BUILT "$here/../../../deploy/images/taktd.sh" "$bin/taktd.tar"
	images="$images $bin/taktd.tar"
fi
# Who does what the manual says has an image of the name that the manifests have.
if [ -n "${TAKT_MANUAL:-}" ]; then
	"$here/../../../deploy/images/archive.sh" "$bin/talker.tar" registry.example.com/talker:1 /guest "$bin/guest"
	images="$images $bin/talker.tar"
fi
# With TAKT_EMULATED, in a machine of its own, with a distribution's kernel, systemd and cgroup v2.
start=$here/node.sh
[ -z "${TAKT_EMULATED:-}" ] || start=$here/machine.sh
TAKT_IMAGES=$images TAKT_MANIFESTS=$manifests TAKT_CHART=$bin/chart.yaml \
	"$start" "$bin/cluster.test" -test.v -test.timeout ${TAKT_EMULATED:+1}30m "$@"
