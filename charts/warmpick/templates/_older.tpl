{{- /*
Values of other versions of the `inferencepool` and `standalone` charts, as they are called here: of those
before v1.5, and of those that llm-d-router had before `router`.
*/ -}}
{{- define "warmpick.older" -}}
{{- include "warmpick.nullChecks" . -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $_ := set $epp "flags" (include "warmpick.flagsSaid" (dict "flags" $epp.flags "files" .Files) | fromJson) -}}
{{- if not .Values.router -}}
{{- /* What the chart itself heeds, if it is said as a flag. */ -}}
{{- with $epp.flags.workers }}{{ $_ := set $epp "workers" (int .) }}{{ end -}}
{{- with index $epp.flags "replicas-port" }}{{ $_ := set $epp.exchange "port" (int .) }}{{ end -}}
{{- end -}}
{{- with $epp.image.hub }}{{ $_ := set $epp.image "registry" . }}{{ end -}}
{{- with $epp.image.name }}{{ $_ := set $epp.image "repository" . }}{{ end -}}
{{- with dig "secret" "name" "" $epp.monitoring }}{{ $_ := set $epp.monitoring.prometheus.auth "secretName" . }}{{ end -}}
{{- if dig "gke" "enabled" false $epp.monitoring -}}
{{- $_ := set $epp.monitoring "provider" "gmp" -}}
{{- $_ := set $epp.monitoring.prometheus "enabled" true -}}
{{- end -}}
{{- $provider := $epp.monitoring.provider -}}
{{- if kindIs "map" $provider -}}
{{- $_ := set $epp.monitoring "provider" ($provider.name | default "" | lower) -}}
{{- if dig "gmp" "autopilot" false $provider }}{{ $_ := set $epp.monitoring "autopilot" true }}{{ end -}}
{{- end -}}
{{- /* A preset is what a proxy is before its own values. */ -}}
{{- range $field, $value := dig ($epp.sidecar.proxyType | default "envoy" | lower) dict ($epp.sidecar.presets | default dict) -}}
{{- if not (get $epp.sidecar $field) }}{{ $_ := set $epp.sidecar $field $value }}{{ end -}}
{{- end -}}
{{- with .Values.istio }}{{ $_ := set $.Values.provider "istio" . }}{{ end -}}
{{- $pool := .Values.inferencePool -}}
{{- if and $epp.endpointsServer.modelServerProtocol (not $epp.endpointsServer.createInferencePool) -}}
{{- $_ := set $pool "modelServerProtocol" $epp.endpointsServer.modelServerProtocol -}}
{{- end -}}
{{- if not $pool.apiVersion }}{{ $_ := set $pool "apiVersion" "inference.networking.k8s.io/v1" }}{{ end -}}
{{- if and $pool.targetPortNumber (eq $pool.apiVersion "inference.networking.x-k8s.io/v1alpha2") -}}
{{- $_ := set $pool "targetPorts" (list (dict "number" $pool.targetPortNumber)) -}}
{{- end -}}
{{- end -}}

{{- /*
Flags by their names, of a map, or of a list as before v1.5. Null is none: it takes away a flag of another
values file, and values files have `flags:` with comments alone. Guides write `name=false: ""`, to have one
argument of it. A name may be spelt as the picker reads it: `--poolName` is `pool-name`.
*/ -}}
{{- define "warmpick.flagsSaid" -}}
{{- $files := .files -}}
{{- $flags := dict -}}
{{- range $name, $value := .flags -}}
{{- if kindIs "map" $value }}{{ $name = $value.name }}{{ $value = $value.value }}{{ end -}}
{{- $parts := splitList "=" $name -}}
{{- if gt (len $parts) 1 }}{{ $value = last $parts }}{{ end -}}
{{- $name = first $parts -}}
{{- if regexMatch "[A-Z]|^-" $name -}}
{{- $spelt := regexReplaceAll "([a-z])([A-Z])" (regexReplaceAll "^-+" $name "") "${1}-${2}" | lower -}}
{{- if hasKey ($files.Get "files/flags.yaml" | fromYaml).flags $spelt }}{{ $name = $spelt }}{{ end -}}
{{- end -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $flags $name $value }}{{ end -}}
{{- end -}}
{{- toJson $flags -}}
{{- end -}}
