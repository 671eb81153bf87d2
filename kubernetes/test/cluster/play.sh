#!/bin/sh
# A Kubernetes of one node, or of two (TAKT_NODES=2), with takt-node to play with, which stays until it is taken down:
#
#   play.sh up                 starts it: what it needs has been built into bin/
#   play.sh kubectl ARG...     kubectl in it; bin/kubectl does the same, and has bin/kubectl-takt as `kubectl takt`
#   play.sh down               ends it and removes all of it
#
# It is the cluster of the tests (node.sh). BACKEND and CORES choose what the node offers, "deadline" and "all"
# if not set. With TAKT_BUILT, where taktd and what belongs to it has been built, the node has time-sensitive pods as well: taktd with
# the network `pods`, takt-cni behind its primary network, and the cluster's objects, with a TaktNetwork that lets every namespace use it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../../bin
cache=${TAKT_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-cluster}
TAKT_CLUSTER=${TAKT_PLAYGROUND:-/var/tmp/takt-playground}

# alive PID WORD: the process runs, and is ours.
alive() { [ -n "$1" ] && [ -r "/proc/$1/cmdline" ] && tr '\0' ' ' <"/proc/$1/cmdline" | grep -q "$2"; }
of() { cat "$TAKT_CLUSTER/$1" 2>/dev/null || true; }

case ${1:-} in
up)
	if alive "$(of outside.pid)" node.sh; then
		echo "the cluster is up: make -C kubernetes cluster-down ends it"
		exit 0
	fi
	"$here/play.sh" down
	mkdir "$TAKT_CLUSTER"
	bin=$(cd "$bin" && pwd)
	network=
	if [ -n "${TAKT_BUILT:-}" ]; then
		TAKT_TAKTD=$TAKT_BUILT/taktd preload=$TAKT_CLUSTER/preload
		export TAKT_TAKTD
		# For glibc and musl, as it is installed: what is built has links to elsewhere.
		cp -RL "$TAKT_BUILT/takt-preload" "$preload"
		network=", network: {enabled: true, objects: true, preload: $preload, library: $TAKT_BUILT/libtakt.so, takt: $TAKT_BUILT/takt}"
	fi
	echo "{config: {cores: \"${CORES:-all}\", backend: ${BACKEND:-deadline}}, image: {pullPolicy: Never}$network}" >"$TAKT_CLUSTER/values.yaml"
	(cd "$here/../chart" && go run ./render "$here/../../../deploy/helm/takt-node" "$TAKT_CLUSTER/values.yaml" kube-system) >"$TAKT_CLUSTER/chart.yaml"
	if [ -n "$network" ]; then
		cat "$here"/../../../deploy/helm/takt-node/crds/*.yaml >>"$TAKT_CLUSTER/chart.yaml"
		# As node.sh has it in taktd's configuration. Without one nobody may use the network.
		echo '{apiVersion: network.takt.dev/v1alpha1, kind: TaktNetwork, metadata: {name: pods}, spec: {vni: 1}}' >"$TAKT_CLUSTER/network.yaml"
	fi
	export TAKT_CLUSTER TAKT_CLUSTER_KEEP=1 TAKT_IMAGES="$bin/guest.tar $bin/takt-node.tar"
	setsid "$here/node.sh" "$here/play.sh" serve >"$TAKT_CLUSTER/up.log" 2>&1 </dev/null &
	echo $! >"$TAKT_CLUSTER/outside.pid"
	until [ -e "$TAKT_CLUSTER/ready" ]; do
		if ! kill -0 "$(of outside.pid)" 2>/dev/null; then
			cat "$TAKT_CLUSTER/up.log" >&2
			exit 1
		fi
		sleep 0.2
	done
	printf '#!/bin/sh\nTAKT_PLAYGROUND=%s exec %s/play.sh kubectl "$@"\n' "$TAKT_CLUSTER" "$here" >"$bin/kubectl"
	chmod +x "$bin/kubectl"
	echo "the cluster is up, as $bin/kubectl sees it:"
	"$bin/kubectl" get nodes,resourceslices
	if [ -n "$network" ]; then
		echo "which pods are time-sensitive, and what keeps one from its launch times: $bin/kubectl takt -A"
	fi
	;;
serve) # in the cluster's namespaces
	kube kubectl apply -f "$TAKT_CLUSTER/chart.yaml"
	kube kubectl -n kube-system rollout status daemonset/takt-node --timeout=300s
	if [ -e network.yaml ]; then
		kube kubectl wait --for condition=Established crd/taktnetworks.network.takt.dev --timeout=60s
		kube kubectl apply -f network.yaml
	fi
	touch ready
	exec sleep infinity
	;;
kubectl)
	shift
	outside=$(of unshare.pid)
	if ! alive "$outside" unshare; then
		echo "the cluster is not up: make -C kubernetes cluster-up starts it" >&2
		exit 1
	fi
	inside=$(cut -d' ' -f1 "/proc/$outside/task/$outside/children")
	exec nsenter --target "$inside" --mount --net --pid --uts --wdns="$PWD" \
		env KUBECONFIG="$TAKT_CLUSTER/admin.conf" PATH="$bin:$PATH" "$cache/bin/kube" kubectl "$@"
	;;
down)
	outside=$(of outside.pid)
	if alive "$outside" node.sh; then
		kill -TERM "$outside"
		while kill -0 "$outside" 2>/dev/null; do sleep 0.1; done
	fi
	rm -rf "$TAKT_CLUSTER" "$bin/kubectl"
	;;
*)
	sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
