{{- /*
The flags of `epp serve`, as a YAML map. What `inferenceExtension.flags` has wins, so that every
flag can be set; `v`, `zap-encoder` and `tracing` are the incumbent's, and become ours.
*/ -}}
{{- define "warmpick.flags" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $flags := dict
      "config-file" (printf "/config/%s" $epp.pluginsConfigFile)
      "log-format" "json"
      "metrics-endpoint-auth" (eq (include "warmpick.metricsAuth" .) "true") -}}
{{- /* Streams may take all of the grace period but what stopping takes, and preStop. */ -}}
{{- $pause := ternary 20 0 (eq (include "warmpick.envoy" .) "true") -}}
{{- $_ := set $flags "drain-timeout" (printf "%ds" (max 0 (sub (int $epp.terminationGracePeriodSeconds) (add $pause 5)))) -}}
{{- if $epp.endpointsServer.createInferencePool -}}
{{- $_ := set $flags "pool-name" .Release.Name -}}
{{- $_ := set $flags "pool-namespace" .Release.Namespace -}}
{{- $_ := set $flags "pool-group" (splitList "/" .Values.inferencePool.apiVersion | first) -}}
{{- else -}}
{{- $_ := set $flags "endpoint-selector" $epp.endpointsServer.endpointSelector -}}
{{- $_ := set $flags "endpoint-target-ports" (include "warmpick.targetPorts" .) -}}
{{- end -}}
{{- if include "warmpick.leaderElection" . -}}
{{- $_ := set $flags "ha-enable-leader-election" true -}}
{{- end -}}
{{- if include "warmpick.tlsSecret" . -}}
{{- $_ := set $flags "cert-path" "/certificate" -}}
{{- end -}}
{{- if include "warmpick.envoy" . -}}
{{- $_ := set $flags "health-checking" true -}}
{{- end -}}
{{- $given := deepCopy $epp.flags -}}
{{- if hasKey $given "v" -}}
{{- $_ := set $flags "log-level" (ternary "debug" "info" (gt (int $given.v) 3)) -}}
{{- end -}}
{{- if hasKey $given "zap-encoder" -}}
{{- $_ := set $flags "log-format" (index $given "zap-encoder") -}}
{{- end -}}
{{- range $name, $value := omit $given "v" "zap-encoder" "tracing" -}}
{{- /* Values files know one kind of number: write 67108864, not 6.7108864e+07. */ -}}
{{- if kindIs "float64" $value -}}
{{- $value = ternary (int64 $value) $value (eq (floor $value) $value) -}}
{{- end -}}
{{- $_ := set $flags $name (toString $value) -}}
{{- end -}}
{{- toYaml $flags -}}
{{- end -}}

{{- define "warmpick.secureServing" -}}
{{- $flags := include "warmpick.flags" . | fromYaml -}}
{{- if ne (toString (index $flags "secure-serving")) "false" }}true{{ end -}}
{{- end -}}
