{{- /* The files that the picker may be told to read: {name: text}. */ -}}
{{- define "warmpick.configuration" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $files := dict
      "default-plugins.yaml" (include (printf "warmpick.policy.%s" $epp.policy) .)
      "least-ttft.yaml" (include "warmpick.policy.least-ttft" .)
      "payload-agnostic.yaml" (include "warmpick.policy.payload-agnostic" .) -}}
{{- if $epp.pluginsConfig }}{{ $_ := set $files $epp.pluginsConfigFile (toYaml $epp.pluginsConfig) }}{{ end -}}
{{- range $file, $text := $epp.pluginsCustomConfig }}{{ $_ := set $files $file $text }}{{ end -}}
{{- range $file, $text := $files }}
{{- $text = regexReplaceAll "^(\\s*\\n)+|\\s+$" $text "" }}
{{ $file | quote }}: |{{ if hasPrefix " " $text }}2{{ end }}
  {{- $text | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Warmpick's default: the least predicted time to the first token. */ -}}
{{- define "warmpick.policy.least-ttft" -}}
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: least-ttft-picker
{{- with .Values.inferenceExtension.tokenizer }}
{{- if .path }}
- type: token-producer
  parameters:
    tokenizer: {{ .path | quote }}
    modelName: {{ .modelName | quote }}
{{- end }}
{{- end }}
{{- with .Values.inferenceExtension.kvEvents }}
{{- if .enabled }}
- type: precise-prefix-cache-producer
  parameters:
    kvEventsConfig:
      podDiscoveryConfig:
        socketPort: {{ int .port }}
        replaySocketPort: {{ int .replayPort }}
{{- end }}
{{- end }}
{{- include "warmpick.sources" (dict "root" . "always" false) }}
{{- include "warmpick.parsers" . }}
{{- end -}}

{{- /* The default of llm-d-router's charts, and of those of GIE. */ -}}
{{- define "warmpick.policy.llm-d" -}}
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
{{- include "warmpick.sources" (dict "root" . "always" true) }}
{{- include "warmpick.parsers" . }}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
{{- end -}}

{{- /* The same with latencyPredictor.enabled: warm endpoints first, then by objectives of latency. */ -}}
{{- define "warmpick.policy.predicted-latency" -}}
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: predicted-latency-producer
{{- range $name, $threshold := dict "strict-affinity-filter" "0.99" "loose-affinity-filter" "0.80" }}
- name: {{ $name }}
  type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: {{ $threshold }}, ttftSource: latencyPredictor, maxTTFTPenaltyMs: 5000}
{{- end }}
- type: slo-headroom-tier-filter
- type: latency-scorer
- type: weighted-random-picker
- type: latency-slo-admitter
{{- include "warmpick.sources" (dict "root" . "always" true) }}
{{- include "warmpick.parsers" . }}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: strict-affinity-filter
  - pluginRef: slo-headroom-tier-filter
  - pluginRef: loose-affinity-filter
  - pluginRef: latency-scorer
  - pluginRef: weighted-random-picker
{{- end -}}

{{- /* For bodies that the picker does not read: load, and a session stays where it is. */ -}}
{{- define "warmpick.policy.payload-agnostic" -}}
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: passthrough-parser
- type: active-request-scorer
- type: session-affinity-scorer
requestHandler:
  parsers:
  - pluginRef: passthrough-parser
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
    weight: 1
  - pluginRef: session-affinity-scorer
    weight: 1
{{- end -}}

{{- /* Plug-ins that say where metrics are read; only what is not the default, unless `always`. */ -}}
{{- define "warmpick.sources" -}}
{{- $epp := .root.Values.inferenceExtension -}}
{{- $source := $epp.metricsDataSource -}}
{{- $type := include "warmpick.modelServerType" .root -}}
{{- $path := $source.path -}}
{{- /* At /metrics it has JSON of its own. */ -}}
{{- if and (eq $type "trtllm-serve") (eq $path "/metrics") }}{{ $path = "/prometheus/metrics" }}{{ end -}}
{{- $usual := and (eq $source.scheme "http") (eq $path "/metrics") $source.insecureSkipVerify -}}
{{- if or .always (not $usual) }}
- type: metrics-data-source
  parameters:
    scheme: {{ $source.scheme | quote }}
    path: {{ $path | quote }}
    insecureSkipVerify: {{ $source.insecureSkipVerify }}
{{- end }}
{{- if or .always (ne $type "vllm") }}
- type: core-metrics-extractor
{{- if ne $type "vllm" }}
  parameters:
    defaultEngine: {{ $type | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "warmpick.modelServerType" -}}
{{- if .Values.inferenceExtension.endpointsServer.createInferencePool -}}
{{- .Values.inferencePool.modelServerType -}}
{{- else -}}
{{- .Values.inferenceExtension.endpointsServer.modelServerType -}}
{{- end -}}
{{- end -}}

{{- /* How requests are read: as said, or as model servers speak. */ -}}
{{- define "warmpick.parsers" -}}
{{- $parsers := .Values.inferenceExtension.parsers -}}
{{- $type := include "warmpick.modelServerType" . -}}
{{- with .Values.inferencePool.parser }}{{ $parsers = list . }}{{ end -}}
{{- if and (eq $type "vllm") (eq .Values.inferencePool.modelServerProtocol "grpc") -}}
{{- $parsers = list "vllmgrpc-parser" -}}
{{- else if and (not $parsers) (eq $type "triton") -}}
{{- $parsers = list "passthrough-parser" -}}
{{- end -}}
{{- range $parsers }}
- type: {{ . }}
{{- end }}
{{- with $parsers }}
requestHandler:
  parsers:
  {{- range . }}
  - pluginRef: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
