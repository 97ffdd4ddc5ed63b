{{- define "model-server.name" -}}
{{- .Release.Name | lower | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "model-server.served" -}}
{{- $folder := or (hasPrefix "/" .Values.model) (hasPrefix "." .Values.model) -}}
{{- .Values.servedModelName | default (ternary (.Values.model | trimSuffix "/" | base) .Values.model $folder) -}}
{{- end -}}

{{- define "model-server.labels" -}}
app.kubernetes.io/name: {{ include "model-server.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: model-server
app.kubernetes.io/part-of: warmpick
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* Every pod of the release; no versions, so that an upgrade without a reason restarts none. */ -}}
{{- define "model-server.selectorLabels" -}}
app.kubernetes.io/name: {{ include "model-server.name" . | quote }}
app.kubernetes.io/component: model-server
{{- end -}}

{{- /* Those that serve, as an InferencePool selects them. */ -}}
{{- define "model-server.poolLabels" -}}
{{- if .Values.podLabels -}}
{{- toYaml .Values.podLabels -}}
{{- else -}}
app: {{ include "model-server.name" . | quote }}
{{- end -}}
{{- end -}}

{{- define "model-server.metadata" -}}
name: {{ include "model-server.name" . | quote }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "model-server.labels" . | nindent 2 }}
{{- end -}}

{{- define "model-server.image" -}}
{{- $image := .Values.image -}}
{{- $tag := $image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.variant) -}}
{{- printf "%s/%s:%s" $image.registry $image.repository $tag | trimPrefix "/" -}}
{{- end -}}

{{- define "model-server.claim" -}}
{{- $claim := .Values.modelCache.persistentVolumeClaim -}}
{{- if $claim.existingClaim -}}
{{- $claim.existingClaim -}}
{{- else if $claim.create -}}
{{- printf "%s-cache" (include "model-server.name" .) -}}
{{- end -}}
{{- end -}}

{{- /* Whether only pods of one node can have the claim that the chart makes. */ -}}
{{- define "model-server.claimOfOneNode" -}}
{{- $claim := .Values.modelCache.persistentVolumeClaim -}}
{{- if and $claim.create (not (has "ReadWriteMany" $claim.accessModes)) }}true{{ end -}}
{{- end -}}

{{- define "model-server.adapters" -}}
{{- .Values.lora.configMap | default (printf "%s-adapters" (include "model-server.name" .)) -}}
{{- end -}}

{{- define "model-server.fenced" -}}
{{- $enabled := .Values.networkPolicy.enabled -}}
{{- if ternary $enabled .Values.kvEvents.enabled (kindIs "bool" $enabled) }}true{{ end -}}
{{- end -}}
