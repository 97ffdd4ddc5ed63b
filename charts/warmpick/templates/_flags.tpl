{{- /*
The flags of `epp serve`, as a YAML map. What `inferenceExtension.flags` has wins, so that every
flag can be set.
*/ -}}
{{- define "warmpick.flags" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $flags := dict
      "zap-encoder" "json"
      "grpc-health-port" (int $epp.grpcHealthPort)
      "metrics-endpoint-auth" (eq (include "warmpick.metricsAuth" .) "true") -}}
{{- /* These two are a configuration in place of the file. */ -}}
{{- if not (or (hasKey $epp.flags "config-text") (hasKey $epp.flags "policy")) -}}
{{- $_ := set $flags "config-file" (printf "/config/%s" $epp.pluginsConfigFile) -}}
{{- end -}}
{{- if or .Values.fromLlmDRouter $epp.tracing.enabled -}}
{{- $_ := set $flags "tracing" $epp.tracing.enabled -}}
{{- end -}}
{{- /* Streams may take all of the grace period but what stopping takes, and preStop. */ -}}
{{- $pause := include "warmpick.pickerPause" . | default "0" | int -}}
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
{{- if gt (int $epp.workers) 1 -}}
{{- $_ := set $flags "workers" (int $epp.workers) -}}
{{- end -}}
{{- if and $epp.exchange.enabled $epp.exchange.redis.url -}}
{{- $_ := set $flags "replicas" $epp.exchange.redis.url -}}
{{- $_ := set $flags "hash-secret-file" "/replicas/secret" -}}
{{- if $epp.exchange.redis.passwordSecretName -}}
{{- $_ := set $flags "replicas-password-file" "/replicas-redis/password" -}}
{{- end -}}
{{- else if $epp.exchange.enabled -}}
{{- $_ := set $flags "replicas" (printf "%s-replicas.%s.svc.%s:%d" (include "warmpick.name" .) .Release.Namespace $epp.clusterDomain (int $epp.exchange.port)) -}}
{{- $_ := set $flags "replicas-port" (int $epp.exchange.port) -}}
{{- $_ := set $flags "hash-secret-file" "/replicas/secret" -}}
{{- end -}}
{{- if include "warmpick.tlsSecret" . -}}
{{- $_ := set $flags "cert-path" "/certificate" -}}
{{- end -}}
{{- if $epp.recording.enabled -}}
{{- $_ := set $flags "record" "/recording" -}}
{{- $_ := set $flags "record-max-bytes" $epp.recording.maxBytes -}}
{{- end -}}
{{- if include "warmpick.envoy" . -}}
{{- $_ := set $flags "health-checking" true -}}
{{- end -}}
{{- range $name, $value := $epp.flags -}}
{{- $_ := set $flags $name (include "warmpick.text" $value) -}}
{{- end -}}
{{- toYaml $flags -}}
{{- end -}}

{{- /* Flags of the values that the picker would refuse. */ -}}
{{- define "warmpick.flagChecks" -}}
{{- $table := .Files.Get "files/flags.yaml" | fromYaml -}}
{{- $known := $table.flags -}}
{{- $where := ternary "router.epp.flags" "inferenceExtension.flags" (not (not .Values.fromLlmDRouter)) -}}
{{- range $name, $value := .Values.inferenceExtension.flags -}}
{{- if not (hasKey $known $name) -}}
{{- fail (printf "%s.%s: the picker has no such flag; `epp serve --help` lists all flags. For a flag of another image, use inferenceExtension.extraArgs" $where $name) -}}
{{- end -}}
{{- $kind := get $known $name -}}
{{- $text := include "warmpick.text" $value -}}
{{- if and $kind (not (regexMatch (printf "^(%s)$" (get $table.kinds $kind)) $text)) -}}
{{- fail (printf "%s.%s is %q, but must be %s" $where $name $text $kind) -}}
{{- end -}}
{{- end -}}
{{- $flags := include "warmpick.flags" . | fromYaml -}}
{{- $most := get $flags "record-max-bytes" | default "1Gi" | toString -}}
{{- $units := dict "K" 1e3 "M" 1e6 "G" 1e9 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 -}}
{{- $bytes := mulf (regexFind "^[0-9]+" $most) (get $units (regexFind "[KMG]i?$" $most) | default 1) -}}
{{- if and (get $flags "record") (lt $bytes 1048576.0) -}}
{{- fail (printf "inferenceExtension.recording.maxBytes is %q, but must be 1Mi or more" $most) -}}
{{- end -}}
{{- end -}}

{{- /* The picker's variables. One of the values stands in place of the chart's: a name is there once. */ -}}
{{- define "warmpick.env" -}}
{{- $given := dict -}}
{{- range .Values.inferenceExtension.env }}{{ $_ := set $given (.name | default "") . }}{{ end -}}
{{- $own := dict -}}
{{- range include "warmpick.ownEnv" . | fromYamlArray -}}
{{- $_ := set $own .name . }}
{{ get $given .name | default . | list | toYaml }}
{{- end -}}
{{- range .Values.inferenceExtension.env -}}
{{- if not (hasKey $own (.name | default "")) }}
{{ list . | toYaml }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "warmpick.ownEnv" -}}
- name: NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if .Values.inferenceExtension.tracing.enabled }}
{{ include "warmpick.tracingEnv" . }}
{{- end }}
{{- end -}}

{{- /* What llm-d-router's chart sets for OpenTelemetry. */ -}}
{{- define "warmpick.tracingEnv" -}}
{{- $tracing := .Values.inferenceExtension.tracing -}}
- name: OTEL_SERVICE_NAME
  value: llm-d-router/epp
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ $tracing.otelExporterEndpoint | quote }}
- name: OTEL_TRACES_EXPORTER
  value: otlp
- name: OTEL_RESOURCE_ATTRIBUTES_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: OTEL_RESOURCE_ATTRIBUTES_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name=$(NAMESPACE),k8s.node.name=$(OTEL_RESOURCE_ATTRIBUTES_NODE_NAME),k8s.pod.name=$(OTEL_RESOURCE_ATTRIBUTES_POD_NAME)
- name: OTEL_TRACES_SAMPLER
  value: {{ $tracing.sampling.sampler | quote }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ $tracing.sampling.samplerArg | quote }}
{{- end -}}

{{- define "warmpick.secureServing" -}}
{{- if not (include "warmpick.flagIsOff" (dict "root" . "name" "secure-serving")) }}true{{ end -}}
{{- end -}}

{{- /* Whether flag `name` says no, in any of the words for it that the picker reads. */ -}}
{{- define "warmpick.flagIsOff" -}}
{{- $flags := include "warmpick.flags" .root | fromYaml -}}
{{- if regexMatch "^(?i:0|f|false|no)$" (index $flags .name | toString) }}true{{ end -}}
{{- end -}}
