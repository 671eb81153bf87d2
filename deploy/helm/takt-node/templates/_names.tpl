{{- define "takt-node.labels" -}}
app.kubernetes.io/name: takt-node
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "takt-node.selector" -}}
app.kubernetes.io/name: takt-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "takt-node.taktdSelector" -}}
app.kubernetes.io/name: taktd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Where the release's taktd brings what its node has for containers and veths: beside takt-gate, with which the agent takes it away. */}}
{{- define "takt-node.brought" -}}
{{ .Values.hostPaths.gate }}/takt-runtime
{{- end }}

{{- define "takt-node.taktdImage" -}}
{{ .Values.taktd.image.repository }}:{{ .Values.taktd.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The init container that brings it: of root, with options of takt-install before its arguments. */}}
{{- define "takt-node.installer" -}}
- name: takt-install
  image: {{ include "takt-node.taktdImage" .root | quote }}
  imagePullPolicy: {{ .root.Values.taktd.image.pullPolicy }}
  command: [/takt-install, {{ .options }}/node, {{ include "takt-node.brought" .root }}]
  securityContext:
    runAsUser: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  volumeMounts:
    - {name: gate, mountPath: {{ .root.Values.hostPaths.gate }}}
{{- end }}

{{/* Cluster-wide names carry the release's namespace and name, so that two releases do not meet. */}}
{{- define "takt-node.clusterName" -}}
{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end }}

{{/* What an operator sets, with the directories of the host. */}}
{{- define "takt-node.config" -}}
{{- /* Lint is content without: only an installation has to name its cores. */}}
{{- $cores := required "config.cores is missing: name the CPUs to offer, as in 2-7, or all; none for networks only" .Values.config.cores }}
{{- if and (eq (toString $cores) "none") (not .Values.network.enabled) }}
{{- fail "config.cores is none and network.enabled is false: nothing is left to serve" }}
{{- end }}
{{- if and .Values.network.objects (not .Values.network.enabled) }}
{{- fail "network.objects is true and network.enabled is false: nodes without networks have no part in them" }}
{{- end }}
{{- range $range := splitList "," (toString $cores) }}
{{- $ends := splitList "-" $range }}
{{- if and (eq (len $ends) 2) (gt (int (first $ends)) (int (last $ends))) }}
{{- fail (printf "config.cores: range %s ends before it begins" $range) }}
{{- end }}
{{- end }}
{{- $paths := .Values.hostPaths -}}
{{- $fixed := dict
  "cdiDirectory" $paths.cdi
  "kubeletPlugins" $paths.kubeletPlugins
  "kubeletRegistry" $paths.kubeletRegistry
  "nriSocket" (printf "%s/nri.sock" $paths.nri)
  "runDirectory" $paths.run
  "gate" (printf "%s/takt-gate" $paths.gate)
  "viewer" (printf "system:serviceaccount:%s:%s-view" .Release.Namespace .Release.Name)
  "listen" (printf ":%d" (int .Values.metrics.port)) -}}
{{- if .Values.network.enabled }}
{{- $node := dict "preload" .Values.network.preload "library" .Values.network.library "takt" .Values.network.takt }}
{{- if .Values.taktd.enabled }}
{{- $brought := include "takt-node.brought" . }}
{{- $node = dict "preload" (printf "%s/takt-preload" $brought) "library" (printf "%s/libtakt.so.0" $brought) "takt" (printf "%s/takt" $brought) }}
{{- end }}
{{- $_ := set $fixed "network" (dict
  "sockets" (printf "%s/cni" $paths.takt)
  "adminSocket" (printf "%s/admin.sock" $paths.takt)
  "plugins" $paths.cni
  "configurations" $paths.cniConfigurations
  "preload" $node.preload
  "library" $node.library
  "path" .Values.network.path
  "otherTraffic" .Values.network.otherTraffic
  "takt" $node.takt
  "unattached" .Values.network.unattached
  "unlisted" .Values.network.unlisted
  "claimed" .Values.network.claimed
  "objects" .Values.network.objects
  "peers" (and .Values.network.objects .Values.network.peers)) }}
{{- end }}
{{ toYaml (merge (dict) $fixed .Values.config) }}
{{- end }}

{{/* What a release has had is not taken away from under pods that use it. What is there is seen by `helm upgrade`, and not by `helm template`. */}}
{{- define "takt-node.switches" -}}
{{- $had := dig "network" (dict) (fromYaml (dig "data" "config.yaml" "" (lookup "v1" "ConfigMap" .Release.Namespace .Release.Name))) }}
{{- $set := lookup "apps/v1" "DaemonSet" .Release.Namespace .Release.Name }}
{{- $gone := false }}
{{- range dig "spec" "template" "spec" "containers" (list) $set }}
{{- $gone = or $gone (has "-uninstall" .args) }}
{{- end }}
{{- /* Set is not done: all agents are those that uninstall, and ready. */}}
{{- $gone = and $gone (eq (int64 (dig "status" "observedGeneration" 0 $set)) (int64 (dig "metadata" "generation" 0 $set))) }}
{{- range $count := list "updatedNumberScheduled" "numberReady" }}
{{- $gone = and $gone (eq (int64 (dig "status" $count 0 $set)) (int64 (dig "status" "desiredNumberScheduled" 0 $set))) }}
{{- end }}
{{- if and $had (not $gone) }}
{{- if and (not .Values.taktd.enabled) (lookup "apps/v1" "DaemonSet" .Release.Namespace (printf "%s-taktd" .Release.Name)) }}
{{- fail (printf "taktd.enabled is false, and was true: all pods would be without their runtime at once. Have the agents take away first what it serves: the steps of docs/how-to/time-sensitive-pods.md#uninstall as far as kubectl rollout status daemonset/%s, with taktd.enabled=true; then set taktd.enabled=false and uninstall=false" .Release.Name) }}
{{- end }}
{{- if not .Values.network.enabled }}
{{- fail (printf "network.enabled is false, and was true: pods that have launch times would be left without them, and the kubelet could not end those with gate time. Have the agents take away what is the network's first: the steps of docs/how-to/time-sensitive-pods.md#uninstall as far as kubectl rollout status daemonset/%s, with network.enabled=true; then set taktd.enabled=false, network.enabled=false, network.objects=false and uninstall=false" .Release.Name) }}
{{- end }}
{{- if and $had.objects (not .Values.network.objects) }}
{{- range $kind := list "TaktNetwork" "GateSchedule" }}
{{- with (lookup "network.takt.dev/v1alpha1" $kind "" "").items }}
{{- fail (printf "network.objects is false, and was true: %s %s would stay as it is on the nodes, with nobody behind it. Delete them first, and wait until the nodes have taken them back: kubectl delete gateschedules,taktnetworks --all" $kind (first .).metadata.name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
