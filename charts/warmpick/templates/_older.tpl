{{- /* Names that values of the `inferencepool` chart had before v1.5, as they are called since. */ -}}
{{- define "warmpick.older" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- if kindIs "slice" $epp.flags -}}
{{- $flags := dict -}}
{{- range $epp.flags }}{{ $_ := set $flags .name .value }}{{ end -}}
{{- $_ := set $epp "flags" $flags -}}
{{- end -}}
{{- with $epp.image.hub }}{{ $_ := set $epp.image "registry" . }}{{ end -}}
{{- with $epp.image.name }}{{ $_ := set $epp.image "repository" . }}{{ end -}}
{{- with dig "secret" "name" "" $epp.monitoring }}{{ $_ := set $epp.monitoring.prometheus.auth "secretName" . }}{{ end -}}
{{- if dig "gke" "enabled" false $epp.monitoring -}}
{{- $_ := set $epp.monitoring "provider" "gmp" -}}
{{- $_ := set $epp.monitoring.prometheus "enabled" true -}}
{{- end -}}
{{- with .Values.istio }}{{ $_ := set $.Values.provider "istio" . }}{{ end -}}
{{- $pool := .Values.inferencePool -}}
{{- if not $pool.apiVersion }}{{ $_ := set $pool "apiVersion" "inference.networking.k8s.io/v1" }}{{ end -}}
{{- if and $pool.targetPortNumber (eq $pool.apiVersion "inference.networking.x-k8s.io/v1alpha2") -}}
{{- $_ := set $pool "targetPorts" (list (dict "number" $pool.targetPortNumber)) -}}
{{- end -}}
{{- end -}}
