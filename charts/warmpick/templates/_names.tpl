{{- /* Names, labels and what several objects must agree on. */ -}}

{{- define "warmpick.name" -}}
{{- printf "%s-epp" (.Release.Name | lower | trunc 40 | trimSuffix "-") -}}
{{- end -}}

{{- define "warmpick.clusterName" -}}
{{- printf "%s-%s" (.Release.Namespace | trunc 40 | trimSuffix "-") (include "warmpick.name" .) -}}
{{- end -}}

{{- define "warmpick.selectorLabels" -}}
{{- if .Values.inferenceExtension.endpointsServer.createInferencePool -}}
inferencepool: {{ include "warmpick.name" . }}
{{- else -}}
epp: {{ include "warmpick.name" . }}
{{- end -}}
{{- end -}}

{{- /* Of pods: no versions, so that an upgrade without a reason restarts none. */ -}}
{{- define "warmpick.podLabels" -}}
app.kubernetes.io/name: {{ include "warmpick.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: endpoint-picker
app.kubernetes.io/part-of: warmpick
{{- end -}}

{{- define "warmpick.labels" -}}
{{ include "warmpick.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "warmpick.metadata" -}}
name: {{ include "warmpick.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "warmpick.labels" . | nindent 2 }}
{{- end -}}

{{- /* The providers below say "true" or nothing, so that `if include` reads well. */ -}}

{{- define "warmpick.leaderElection" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- if kindIs "bool" $epp.leaderElection -}}
{{- if $epp.leaderElection }}true{{ end -}}
{{- else if and (gt (int $epp.replicas) 1) (not $epp.autoscaling.enabled) -}}
true
{{- end -}}
{{- end -}}

{{- define "warmpick.metricsAuth" -}}
{{- if .Values.inferenceExtension.monitoring.prometheus.auth.enabled }}true{{ end -}}
{{- end -}}

{{- define "warmpick.envoy" -}}
{{- $sidecar := .Values.inferenceExtension.sidecar -}}
{{- if and $sidecar.enabled (eq (lower $sidecar.proxyType) "envoy") }}true{{ end -}}
{{- end -}}

{{- define "warmpick.tlsSecret" -}}
{{- $tls := .Values.inferenceExtension.tls -}}
{{- if $tls.secretName -}}
{{- $tls.secretName -}}
{{- else if $tls.certManager.enabled -}}
{{- printf "%s-tls" (include "warmpick.name" .) -}}
{{- end -}}
{{- end -}}

{{- /* The ports of the model servers, as numbers with commas. */ -}}
{{- define "warmpick.targetPorts" -}}
{{- $ports := list -}}
{{- if .Values.inferenceExtension.endpointsServer.createInferencePool -}}
{{- range .Values.inferencePool.targetPorts }}{{ $ports = append $ports (int .number) }}{{ end -}}
{{- else -}}
{{- $given := .Values.inferenceExtension.endpointsServer.targetPorts -}}
{{- if kindIs "slice" $given -}}
{{- range $given }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- else -}}
{{- range splitList "," (toString $given) }}{{ $ports = append $ports (int (trim .)) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- join "," $ports -}}
{{- end -}}

{{- /* Without a pool the picker calls it by its Deployment. */ -}}
{{- define "warmpick.leaseName" -}}
{{- $pool := ternary .Release.Name (include "warmpick.name" .) .Values.inferenceExtension.endpointsServer.createInferencePool -}}
{{- printf "epp-%s-%s.llm-d.ai" .Release.Namespace $pool -}}
{{- end -}}

{{- /* The model servers' pods, as a LabelSelector. */ -}}
{{- define "warmpick.modelServerSelector" -}}
matchLabels:
{{- if .Values.inferenceExtension.endpointsServer.createInferencePool }}
  {{- range $label, $value := dig "matchLabels" dict .Values.inferencePool.modelServers }}
  {{ $label }}: {{ $value | quote }}
  {{- end }}
{{- else }}
  {{- range splitList "," .Values.inferenceExtension.endpointsServer.endpointSelector }}
  {{- $parts := splitList "=" (. | replace "==" "=") }}
  {{ first $parts | trim }}: {{ last $parts | trim | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* The same for kubectl's -l. */ -}}
{{- define "warmpick.selectorText" -}}
{{- if .Values.inferenceExtension.endpointsServer.createInferencePool -}}
{{- $terms := list -}}
{{- range $label, $value := dig "matchLabels" dict .Values.inferencePool.modelServers -}}
{{- $terms = append $terms (printf "%s=%v" $label $value) -}}
{{- end -}}
{{- join "," $terms -}}
{{- else -}}
{{- .Values.inferenceExtension.endpointsServer.endpointSelector -}}
{{- end -}}
{{- end -}}
