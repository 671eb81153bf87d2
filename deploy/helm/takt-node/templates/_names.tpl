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

{{/* Cluster-wide names carry the release's namespace and name, so that two releases do not meet. */}}
{{- define "takt-node.clusterName" -}}
{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end }}

{{/* What an operator sets, with the directories of the host. */}}
{{- define "takt-node.config" -}}
{{- $paths := .Values.hostPaths -}}
{{- $fixed := dict
  "cdiDirectory" $paths.cdi
  "kubeletPlugins" $paths.kubeletPlugins
  "kubeletRegistry" $paths.kubeletRegistry
  "nriSocket" (printf "%s/nri.sock" $paths.nri)
  "runDirectory" $paths.run
  "gate" (printf "%s/takt-gate" $paths.gate)
  "listen" (printf ":%d" (int .Values.metrics.port)) -}}
{{ toYaml (merge (dict) $fixed .Values.config) }}
{{- end }}
