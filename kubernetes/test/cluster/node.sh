#!/bin/sh
# Runs a command beside a whole Kubernetes of one node, or of two (TAKT_NODES=2): node.sh COMMAND...
# The cluster is in namespaces of its own (mounts, network, processes, host name), and so is the command: what
# they mount and listen on is theirs, and all of it goes when the command ends. Only the cgroups are the
# machine's: they are in groups named takt-cluster, and in the agents' takt-veth, which are removed. Needs root and what build.sh makes.
#
# Each of etcd, apiserver, controllers, scheduler, containerd and kubelet is started again when it ends, so
# that tests may kill them; their process numbers are in $TAKT_CLUSTER/NAME.pid and they log to NAME.log.
# TAKT_KUBELET are more lines for the kubelet's configuration. TAKT_RUNTIME=crio has CRI-O instead of containerd.
#
# TAKT_MULTUS=1 has pods attached to the networks of their annotation as well, by what stands in for Multus.
#
# The second node has namespaces of its own inside, its files in $TAKT_CLUSTER/node-2, and a cable to the first one: their
# interfaces wire0 and eth0. Pods of both are then on one Ethernet segment, VXLAN 1 of the kernel, or with TAKT_FLANNEL=1 each node has
# a subnet of its own, the bridge cni0 and flannel.1, with what flanneld enters there. With TAKT_RATE, bit/s, there is
# a switch between them that sends towards the first node at this rate, what has the upper half of all DSCP values first. The second
# node's kernel sends at this rate too, from one queue; its taktd sends past it (AF_XDP).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ "${TAKT_MACHINE:-}" ] && [ "${TAKT_CLUSTER_INSIDE:-}" = "" ]; then
	TAKT_CLUSTER=/var/tmp/takt-cluster PATH="$TAKT_CLUSTER_CACHE/bin:$PATH"
	export TAKT_CLUSTER TAKT_CLUSTER_INSIDE=1
	mkdir $TAKT_CLUSTER
fi
if [ "${TAKT_CLUSTER_INSIDE:-}" = "" ]; then
	cache=${TAKT_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-cluster}
	TAKT_CLUSTER=${TAKT_CLUSTER:-$(mktemp -d /var/tmp/takt-cluster.XXXXXX)}
	export TAKT_CLUSTER TAKT_CLUSTER_INSIDE=1 PATH="$cache/bin:$PATH"
	finish() {
		status=$?
		# An agent that was killed has left the machine partitioned, and its note of how it was has gone with it.
		cpuset=/sys/fs/cgroup/cpuset
		if [ -d $cpuset/takt ]; then
			echo "giving the machine its cores back"
			echo 1 >$cpuset/cpuset.sched_load_balance
			for group in $cpuset/takt/cpu[0-9]* $cpuset/takt $cpuset/takt-rest; do
				while read -r task; do
					echo "$task" >$cpuset/tasks
				done <"$group/tasks" 2>/dev/null || true
				rmdir "$group" || true
			done
		fi
		# Processes that have been killed leave their cgroups a moment later.
		for try in 1 2 3 4 5 6 7 8 9 10; do
			for group in /sys/fs/cgroup/takt-cluster /sys/fs/cgroup/*/takt-cluster /sys/fs/cgroup/takt-veth /sys/fs/cgroup/*/takt-veth; do
				[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || left=$try
			done
			[ "${left:-0}" = "$try" ] || break
			sleep 0.5
		done
		if [ $status -eq 0 ] || [ -z "${TAKT_CLUSTER_KEEP:-}" ]; then
			rm -rf "$TAKT_CLUSTER"
		else
			echo "logs are in $TAKT_CLUSTER"
		fi
		exit $status
	}
	trap finish EXIT
	# In the background, so that the end of this script is the end of everything.
	unshare -m -n -p -f --kill-child=SIGKILL --mount-proc --uts "$0" "$@" &
	inside=$!
	echo $inside >"$TAKT_CLUSTER/unshare.pid"
	trap 'kill -KILL $inside; wait $inside; exit 143' INT TERM
	status=0
	wait $inside || status=$?
	exit $status
fi

nodes=${TAKT_NODES:-1}
if [ "$TAKT_CLUSTER_INSIDE" = 2 ]; then
	node=node-2 address=10.66.0.3 other=10.66.0.1 segment=2 cgroup=takt-cluster/node-2
	cd "$TAKT_CLUSTER/node-2"
else
	node=node-1 address=10.66.0.1 other=10.66.0.3 segment=1 cgroup=takt-cluster
	cd "$TAKT_CLUSTER"
fi
hostname $node
driver=cgroupfs root=/$cgroup systemd=false
if [ "${TAKT_MACHINE:-}" ]; then
	driver=systemd root=/ systemd=true
else
	mount --make-rprivate /
	mount -t tmpfs tmpfs /run
fi
for dir in /var/lib/cni /var/lib/kubelet /var/log/containers /var/log/pods /opt/containerd /usr/libexec/kubernetes \
	/var/lib/takt-node /var/lib/takt /etc/cni /opt/cni /etc/cdi; do
	mkdir -p $dir
	[ "${TAKT_MACHINE:-}" ] || mount -t tmpfs tmpfs $dir
done
[ "${TAKT_MACHINE:-}" ] || mount --make-shared /var/lib/kubelet
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null || true
# The kubelet insists on values that a machine of several users need not have.
for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
	file=${setting%=*}
	echo "${setting#*=}" >"sysctl.$(basename "$file")"
	mount --bind "sysctl.$(basename "$file")" "/proc/sys/$file"
done
# A default route makes the kubelet believe in the node's address; the service address is the first node's own.
ip link set lo up
if [ $node = node-1 ]; then
	ip link add node0 type bridge
	ip addr add $address/24 dev node0
	ip link set node0 up
	ip route add default via 10.66.0.2
	ip addr add 10.96.0.1/32 dev lo
	uplink=node0
else
	[ -z "${TAKT_RATE:-}" ] || tc qdisc add dev eth0 root tbf rate "${TAKT_RATE}bit" burst $((TAKT_RATE / 8000)) latency 50ms
	ip addr add $address/24 dev eth0
	ip link set eth0 up
	ip route add default via 10.66.0.1
	uplink=eth0
fi
if [ -n "${TAKT_FLANNEL:-}" ]; then
	peer=$((3 - segment))
	ip link add flannel.1 address 02:f1:00:00:00:0$segment mtu 1450 type vxlan id 1 dstport 8472 local $address dev $uplink nolearning
	ip addr add 10.67.$segment.0/32 dev flannel.1
	ip link set flannel.1 up
	ip route add 10.67.$peer.0/24 via 10.67.$peer.0 dev flannel.1 onlink
	ip neighbour add 10.67.$peer.0 lladdr 02:f1:00:00:00:0$peer dev flannel.1 nud permanent
	/sbin/bridge fdb append 02:f1:00:00:00:0$peer dev flannel.1 dst $other
elif [ $nodes = 2 ]; then
	ip link add pods0 type bridge
	ip link add pods.1 type vxlan id 1 dstport 4789 local $address dev $uplink
	# Not the plugin of that name, which is found first.
	/sbin/bridge fdb append 00:00:00:00:00:00 dev pods.1 dst $other
	ip link set pods.1 mtu 1450 master pods0 up
	ip link set pods0 up
fi

for group in /sys/fs/cgroup /sys/fs/cgroup/*; do
	[ $driver = cgroupfs ] && [ -f "$group/cgroup.procs" ] || continue
	mkdir -p "$group/$cgroup"
	if [ -f "$group/cpuset.cpus" ]; then
		cat "$group/cpuset.cpus" >"$group/$cgroup/cpuset.cpus"
		cat "$group/cpuset.mems" >"$group/$cgroup/cpuset.mems"
	fi
done

mkdir -p /opt/cni/bin /etc/cni/net.d
for plugin in bridge loopback host-local; do
	cp "$(command -v $plugin)" /opt/cni/bin/
done
# With taktd: takt-cni behind the plugin of the primary network, which takt-node installs.
chained=
if [ -n "${TAKT_TAKTD:-}" ]; then
	chained=', {"type": "takt-cni", "network": "pods", "classes": [0, 5], "write": ["7"], "read": ["7"], "pods": "annotated",
 "capabilities": {"io.kubernetes.cri.pod-annotations": true}}'
fi
# What stands in for Multus is behind it, too.
if [ -n "${TAKT_MULTUS:-}" ]; then
	cp "$here/../../bin/multus" /opt/cni/bin/
	chained=', {"type": "multus", "kubectl": ["'$(command -v kube)'", "kubectl", "--kubeconfig", "'$TAKT_CLUSTER'/admin.conf"], "capabilities": {"io.kubernetes.cri.pod-annotations": true}}'
fi
range='{"subnet": "10.67.0.0/24"}' mtu=1500 bridge='"bridge": "pods0", "isGateway": true' routes=0.0.0.0/0
if [ -n "${TAKT_FLANNEL:-}" ]; then
	# What Flannel's plugin has the bridge plugin do.
	range='{"subnet": "10.67.'$segment'.0/24"}' mtu=1450 bridge='"bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false' routes=10.67.0.0/16
elif [ $nodes = 2 ]; then
	range='{"subnet": "10.67.0.0/16", "rangeStart": "10.67.'$segment'.2", "rangeEnd": "10.67.'$segment'.250", "gateway": "10.67.'$segment'.1"}' mtu=1450
fi
cat >/etc/cni/net.d/10-pods.conflist <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", $bridge, "mtu": $mtu,
 "ipam": {"type": "host-local", "ranges": [[$range]], "routes": [{"dst": "$routes"}]}}$chained]}
JSON
follow=
[ -z "${TAKT_FLANNEL:-}" ] || follow='port = 8472
follow = "flannel.1"'
cat >taktd.toml <<TOML
[node]
state = "$PWD/taktd"
[security]
key_file = "$PWD/node.key"
[[network]]
name = "pods"
carrier = "vxlan:1"
$follow
[departure]
tolerance_us = 1000000
[metrics]
address = "$address:9465"
TOML

# For what leaves by the cable.
if [ $node = node-2 ]; then
	cat >>taktd.toml <<TOML
[[network]]
name = "line"
carrier = "native"
interface = "eth0"
TOML
fi
if [ -n "${TAKT_RATE:-}" ] && [ $node = node-2 ]; then
	cat >>taktd.toml <<TOML
[[lane]]
core = 0
idle = "park"
scheduling = "fifo:50"
[datapath.xdp]
interface = "eth0"
TOML
fi

if [ $node = node-1 ]; then
	openssl genrsa -out service.key 2048 2>/dev/null
	cat >tokens.csv <<CSV
admin-token,admin,admin,system:masters
controllers-token,system:kube-controller-manager,controllers
scheduler-token,system:kube-scheduler,scheduler
kubelet-1-token,system:node:node-1,kubelet-1,system:nodes
kubelet-2-token,system:node:node-2,kubelet-2,system:nodes
CSV
fi
for user in admin controllers scheduler kubelet-$segment; do
	cat >$user.conf <<YAML
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://10.66.0.1:443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: $user-token}}]
YAML
done
export KUBECONFIG="$TAKT_CLUSTER/admin.conf"

runtime=${TAKT_RUNTIME:-containerd}
cat >kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: $driver
cgroupRoot: $root
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
containerRuntimeEndpoint: unix:///run/$runtime/$runtime.sock
resolvConf: ""
evictionHard: {memory.available: "50Mi", nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 100
syncFrequency: 10s
${TAKT_KUBELET:-}
YAML
cat >containerd.toml <<TOML
version = 3
root = "$PWD/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "takt.test/guest:1"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "$(command -v runc)"
SystemdCgroup = $systemd
TOML

# CRI-O's configuration. Its policy of images is the machine's own file, so that this is for one which is the cluster's alone.
if [ $runtime = crio ]; then
	[ "${TAKT_MACHINE:-}" ] || { echo "CRI-O is run in a machine of its own: machine.sh" >&2; exit 1; }
	mkdir -p /etc/containers
	echo '{"default": [{"type": "insecureAcceptAnything"}]}' >/etc/containers/policy.json
	cat >crio.toml <<TOML
[crio]
root = "$PWD/containers"
runroot = "/run/containers/storage"
storage_driver = "overlay"
version_file = "/run/crio/version"
[crio.api]
listen = "/run/crio/crio.sock"
[crio.runtime]
cgroup_manager = "systemd"
conmon_cgroup = "system.slice"
default_runtime = "runc"
pinns_path = "$(command -v pinns)"
[crio.runtime.runtimes.runc]
runtime_path = "$(command -v runc)"
runtime_type = "oci"
monitor_path = "$(command -v conmon)"
[crio.image]
pause_image = "takt.test/guest:1"
pause_command = ""
[crio.network]
network_dir = "/etc/cni/net.d"
plugin_dirs = ["/opt/cni/bin"]
TOML
fi

# keep NAME COMMAND...: in the background, again and again.
keep() {
	name=$1
	shift
	(
		while true; do
			"$@" >>"$name.log" 2>&1 &
			echo $! >"$name.pid"
			wait $! || true
			sleep 0.2
		done
	) &
}

# until_true SECONDS COMMAND...: a cluster that does not come up is a failure, and its log says why.
until_true() {
	left=$(($1 * 5))
	shift
	until "$@" >/dev/null 2>&1; do
		left=$((left - 1))
		if [ $left -le 0 ]; then
			echo "never came: $*" >&2
			tail -n 5 ./*.log >&2
			exit 1
		fi
		sleep 0.2
	done
}

container_runtime() {
	if [ $runtime = crio ]; then
		keep crio crio --config crio.toml --config-dir ""
	else
		keep containerd containerd -c containerd.toml
	fi
}
import() {
	[ $runtime = crio ] || until_true 60 ctr version
	for image in ${TAKT_IMAGES:-}; do
		if [ $runtime = crio ]; then
			name=$(tar -xOf "$image" ./manifest.json | sed 's/.*"RepoTags": *\["\([^"]*\)".*/\1/')
			skopeo copy -q "docker-archive:$image" "containers-storage:[overlay@$PWD/containers+/run/containers/storage]$name"
		else
			ctr -n k8s.io images import --local "$image" >/dev/null
		fi
	done
}
kubelet() { keep kubelet kube kubelet --config kubelet.yaml --kubeconfig kubelet-$segment.conf --node-ip $address --hostname-override $node; }

if [ $node = node-2 ]; then
	container_runtime
	[ -z "${TAKT_TAKTD:-}" ] || keep taktd "$TAKT_TAKTD" --config taktd.toml
	import
	kubelet
	exec sleep infinity
fi

keep etcd etcd --data-dir etcd --unsafe-no-fsync --log-level error \
	--listen-peer-urls http://127.0.0.1:2380 --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
keep apiserver kube apiserver --etcd-servers http://127.0.0.1:2379 --secure-port 443 --cert-dir certs \
	--advertise-address 10.66.0.1 --service-cluster-ip-range 10.96.0.0/24 --token-auth-file tokens.csv --authorization-mode Node,RBAC \
	--service-account-issuer https://kubernetes.default.svc --service-account-key-file service.key --service-account-signing-key-file service.key \
	--kubelet-preferred-address-types InternalIP --allow-privileged
container_runtime
[ -z "${TAKT_TAKTD:-}" ] || keep taktd "$TAKT_TAKTD" --config taktd.toml
until_true 60 kube kubectl get --raw /readyz
keep controllers kube controllers --kubeconfig controllers.conf --service-account-private-key-file service.key --root-ca-file certs/apiserver.crt \
	--use-service-account-credentials --leader-elect=false
keep scheduler kube scheduler --kubeconfig scheduler.conf --leader-elect=false \
	--authorization-always-allow-paths /healthz,/readyz,/livez,/metrics
import
kubelet
if [ $nodes = 2 ]; then
	mkdir node-2
	TAKT_CLUSTER_INSIDE=2 unshare -m -n -p -f --kill-child=SIGKILL --mount-proc --uts sh -c '
		until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done
		exec "$0"' "$here/node.sh" >node-2.log 2>&1 &
	second=$!
	until_true 10 sh -c "[ \"\$(readlink /proc/$second/ns/net)\" != \"\$(readlink /proc/self/ns/net)\" ]"
	if [ -n "${TAKT_RATE:-}" ]; then
		ip link add switch0 type bridge
		ip link add wire0 type veth peer name switch1
		ip link add switch2 type veth peer name eth0 netns $second
		for port in switch1 switch2; do ip link set $port master switch0 up; done
		# It answers for nobody: it is in the first node's namespace.
		ip link set switch0 arp off up
		# Each queue holds 50 ms.
		tc qdisc add dev switch1 root handle 1: htb default 20
		tc class add dev switch1 parent 1: classid 1:1 htb rate "${TAKT_RATE}bit"
		for class in "10 $((TAKT_RATE / 10)) 0" "20 $((TAKT_RATE - TAKT_RATE / 10)) 1"; do
			tc class add dev switch1 parent 1:1 classid 1:${class%% *} htb rate "$(echo "$class" | cut -d' ' -f2)bit" ceil "${TAKT_RATE}bit" prio ${class##* }
			tc qdisc add dev switch1 parent 1:${class%% *} bfifo limit $((TAKT_RATE / 160))
		done
		tc filter add dev switch1 parent 1: protocol ip u32 match ip dsfield 0x80 0x80 flowid 1:10
	else
		ip link add wire0 type veth peer name eth0 netns $second
	fi
	ip link set wire0 master node0 up
	until_true 180 kube kubectl wait --for condition=Ready node/node-2 --timeout=1s
fi
# CRI-O takes a network only when all of its plugins are there, and takt-cni comes with takt-node, which needs no network.
[ $runtime = crio ] && [ -n "${TAKT_TAKTD:-}" ] || until_true 120 kube kubectl wait --for condition=Ready node/$node --timeout=1s
"$@"
