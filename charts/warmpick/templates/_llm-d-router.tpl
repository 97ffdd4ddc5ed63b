{{- /*
Values of llm-d-router's charts (`router`, `httpRoute`), put in the words of this chart, which every
template reads. Each template begins with an include of this; the first one does it for all.
*/ -}}
{{- define "warmpick.llmDRouter" -}}
{{- include "warmpick.older" . -}}
{{- if and (or .Values.router .Values.httpRoute) (not .Values.fromLlmDRouter) -}}
{{- range $tree := list "router" "httpRoute" -}}
{{- $_ := set $.Values $tree (include "warmpick.said" (index $.Values $tree | default dict) | fromYaml) -}}
{{- end -}}
{{- $router := dict -}}
{{- if .Values.router }}{{ $router = include "warmpick.router" . | fromYaml }}{{ end -}}
{{- $words := include "warmpick.translated" (dict "router" $router "root" .) | fromYaml -}}
{{- if hasKey $words "Error" }}{{ fail (printf "router: %s" $words.Error) }}{{ end -}}
{{- range $tree, $values := $words -}}
{{- $_ := set $.Values $tree (include "warmpick.overlaid" (dict "base" (index $.Values $tree) "over" $values "keep" true) | fromYaml) -}}
{{- end -}}
{{- with $router.inferenceObjectives }}{{ $_ := set $.Values "inferenceObjectives" . }}{{ end -}}
{{- $_ := set .Values "fromLlmDRouter" (dict "router" $router "given" (.Values.router | default dict)) -}}
{{- end -}}
{{- end -}}

{{- /* The whole `router`: what is given over the defaults of files/router.yaml. */ -}}
{{- define "warmpick.router" -}}
{{- $given := .Values.router | default dict -}}
{{- $router := include "warmpick.overlaid" (dict "base" (.Files.Get "files/router.yaml" | fromYaml) "over" $given) | fromYaml -}}
{{- /* A preset is what a proxy is before its own values. */ -}}
{{- $preset := dig "presets" "envoy" dict $router.proxy -}}
{{- $proxy := include "warmpick.overlaid" (dict "base" (omit $router.proxy "presets") "over" $preset) | fromYaml -}}
{{- $proxy = include "warmpick.overlaid" (dict "base" $proxy "over" (dig "proxy" dict $given)) | fromYaml -}}
{{- $_ := set $proxy "enabled" (eq (include "warmpick.standalone" .) "true") -}}
{{- $_ := set $router "proxy" $proxy -}}
{{- if and $proxy.enabled (not (dig "extraServicePorts" list $given)) -}}
{{- $_ := set $router "extraServicePorts" (list (dict "name" "http" "port" 8081 "protocol" "TCP" "targetPort" 8081)) -}}
{{- end -}}
{{- if not $router.modelServers.targetPorts -}}
{{- $_ := set $router.modelServers "targetPorts" (list (dict "number" $router.modelServers.targetPortNumber)) -}}
{{- end -}}
{{- toYaml $router -}}
{{- end -}}

{{- /*
Whether the values are for llm-d-router-standalone, which has a proxy, rather than for -gateway.
`router.proxy.enabled` says it. Guides share files between both charts and leave it to the chart's
name, so otherwise: a route or a gateway's provider speaks for a gateway, a proxy's values, a port
for clients, or no pool, for standalone.
*/ -}}
{{- define "warmpick.standalone" -}}
{{- $router := .Values.router | default dict -}}
{{- $proxy := dig "proxy" dict $router | default dict -}}
{{- $http := false -}}
{{- range dig "extraServicePorts" list $router }}{{ if eq (toString .name) "http" }}{{ $http = true }}{{ end }}{{ end -}}
{{- if kindIs "bool" (get $proxy "enabled") -}}
{{- if $proxy.enabled }}true{{ end -}}
{{- else if or .Values.httpRoute (ne .Values.provider.name "none") -}}
{{- else if or $proxy $http (eq (toString (dig "inferencePool" "create" true $router)) "false") -}}
true
{{- end -}}
{{- end -}}

{{- /* `router` in the words of this chart: a map of its trees. */ -}}
{{- define "warmpick.translated" -}}
{{- with .router -}}
inferenceExtension:
  policy: {{ ternary "predicted-latency" "llm-d" .latencyPredictor.enabled }}
  replicas: {{ .epp.replicas }}
  {{- $image := dict }}
  {{- range $part, $value := pick .epp.image "registry" "repository" "tag" "pullPolicy" }}{{ if not (kindIs "invalid" $value) }}{{ $_ := set $image $part (toString $value) }}{{ end }}{{ end }}
  image: {{ toJson $image }}
  imagePullSecrets: {{ toJson .imagePullSecrets }}
  extProcPort: {{ .epp.extProcPort }}
  grpcHealthPort: {{ .epp.grpcHealthPort }}
  metricsPort: {{ .metricsPort }}
  clusterDomain: {{ .clusterDomain }}
  failureMode: {{ ternary "FailClose" .inferencePool.failureMode (eq .inferencePool.failureMode "FailClosed") }}
  flags: {{ include "warmpick.flagsSaid" (dict "flags" .epp.flags "files" $.root.Files) }}
  env: {{ toJson .epp.env }}
  parsers: {{ toJson .epp.parsers }}
  metricsDataSource: {{ toJson .epp.metricsDataSource }}
  extraContainerPorts: {{ toJson .epp.extraContainerPorts }}
  extraServicePorts: {{ toJson .extraServicePorts }}
  volumes: {{ toJson .epp.volumes }}
  volumeMounts: {{ toJson .epp.volumeMounts }}
  affinity: {{ toJson .epp.affinity }}
  tolerations: {{ toJson .epp.tolerations }}
  podAnnotations: {{ toJson .epp.podAnnotations }}
  pluginsConfigFile: {{ .epp.pluginsConfigFile }}
  pluginsConfig: {{ toJson .epp.pluginsConfig }}
  pluginsCustomConfig: {{ toJson .epp.pluginsCustomConfig }}
  podSecurityContext: {{ toJson .epp.podSecurityContext }}
  securityContext: {{ toJson .epp.securityContext }}
  strategy: {{ toJson (.epp.deploymentStrategy | default (ternary dict (dict "type" "Recreate") .epp.autoscaling.enabled)) }}
  terminationGracePeriodSeconds: {{ .epp.terminationGracePeriodSeconds }}
  {{- with .epp.resources }}
  resources: {{ toJson . }}
  {{- end }}
  autoscaling: {{ toJson .epp.autoscaling }}
  endpointsServer:
    createInferencePool: {{ .inferencePool.create }}
    {{- $terms := list }}
    {{- range $label, $value := .modelServers.matchLabels }}{{ $terms = append $terms (printf "%s=%s" $label (include "warmpick.text" $value)) }}{{ end }}
    endpointSelector: {{ join "," $terms | quote }}
    {{- $ports := list }}
    {{- range .modelServers.targetPorts }}{{ $ports = append $ports (int .number) }}{{ end }}
    targetPorts: {{ toJson $ports }}
    modelServerType: {{ .modelServers.type }}
  {{- $files := include "warmpick.overlaid" (dict "base" .proxy.configMap.data "over" .proxy.configMapData) | fromYaml }}
  sidecar: {{ omit .proxy "configMapData" | merge (dict "configMap" (dict "name" .proxy.configMap.name "data" $files)) | toJson }}
  renderer: {{ omit .tokenizer "securityContext" | toJson }}
  monitoring:
    interval: {{ .monitoring.interval }}
    # Unlike the charts of GIE, a gateway on GKE alone makes no PodMonitoring.
    provider: {{ .monitoring.provider.name | default "prometheusoperator" }}
    autopilot: {{ .monitoring.provider.gmp.autopilot }}
    prometheus: {{ toJson .monitoring.prometheus }}
  tracing: {{ toJson .tracing }}
  latencyPredictor: {{ toJson .latencyPredictor }}
inferencePool:
  targetPorts: {{ toJson .modelServers.targetPorts }}
  modelServerType: {{ .modelServers.type }}
  modelServerProtocol: {{ .modelServers.protocol }}
  modelServers: {{ toJson (dict "matchLabels" .modelServers.matchLabels) }}
{{- end }}
{{- with .root.Values.httpRoute }}
experimentalHttpRoute: {{ merge (dict "enabled" (.create | default false)) (omit . "create") | toJson }}
{{- end }}
{{- end -}}

{{- /*
`base` with what `over` has, deep in maps; null takes a value away. With `keep` null and an empty
map leave what `base` has.
*/ -}}
{{- define "warmpick.overlaid" -}}
{{- $all := deepCopy (.base | default dict) -}}
{{- range $key, $value := .over -}}
{{- $held := get $all $key -}}
{{- if kindIs "invalid" $value -}}
{{- if not $.keep }}{{ $_ := unset $all $key }}{{ end -}}
{{- else if and (kindIs "map" $held) (kindIs "map" $value) -}}
{{- if or $value (not $.keep) -}}
{{- $_ := set $all $key (include "warmpick.overlaid" (dict "base" $held "over" $value "keep" $.keep) | fromYaml) -}}
{{- end -}}
{{- else -}}
{{- $_ := set $all $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{- /* A map without what is null, as if nothing had been said: values files have keys with comments alone. */ -}}
{{- define "warmpick.said" -}}
{{- $all := dict -}}
{{- range $key, $value := . -}}
{{- $part := $value -}}
{{- if kindIs "map" $value }}{{ $part = include "warmpick.said" $value | fromYaml }}{{ end -}}
{{- if not (or (kindIs "invalid" $value) (and $value (not $part))) }}{{ $_ := set $all $key $part }}{{ end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{- /* The values below `given` that `known` has not, one a line. */ -}}
{{- define "warmpick.unknown" -}}
{{- range $key, $value := .given -}}
{{- $path := printf "%s.%s" $.path $key -}}
{{- if not (hasKey $.known $key) }}
{{ $path }}
{{- else if and (kindIs "map" $value) (kindIs "map" (index $.known $key)) (index $.known $key) -}}
{{- include "warmpick.unknown" (dict "known" (index $.known $key) "given" $value "path" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
What is taken and changes nothing here, and why: one a line. Of `router` only what was given.
*/ -}}
{{- define "warmpick.withoutEffect" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $lines := list -}}
{{- $router := .Values.fromLlmDRouter -}}
{{- $given := dict -}}
{{- $tree := "inferenceExtension" -}}
{{- if $router }}{{ $given = $router.given }}{{ $tree = "router" }}{{ end -}}
{{- if $epp.latencyPredictor.enabled -}}
{{- $lines = append $lines (printf "%s.latencyPredictor: the picker predicts latency in its own process, so no training or\n  prediction servers are installed, and their values, images and eppEnv have no effect" $tree) -}}
{{- end -}}
{{- $own := get ($epp.pluginsCustomConfig | default dict) $epp.pluginsConfigFile -}}
{{- if $epp.pluginsConfig }}{{ $own = toYaml $epp.pluginsConfig }}{{ end -}}
{{- $source := "metrics-data-source" -}}
{{- if and $own (contains $source (include "warmpick.sources" (dict "root" . "always" false))) (not (contains $source $own)) -}}
{{- $lines = append $lines (printf "%s.metricsDataSource: metrics are read at the default place, because %s is a file of yours;\n  write a %s into it" (ternary "router.epp" "inferenceExtension" (not (empty $router))) $epp.pluginsConfigFile $source) -}}
{{- end -}}
{{- if and .Values.inferencePool.targetPortNumber (ne .Values.inferencePool.apiVersion "inference.networking.x-k8s.io/v1alpha2") -}}
{{- $lines = append $lines "inferencePool.targetPortNumber: it belongs to v1alpha2; for a pool of v1, set inferencePool.targetPorts" -}}
{{- end -}}
{{- if and (dig "gke" "preferredBackends" "enabled" false .Values.provider) (not (include "warmpick.preferred" .)) -}}
{{- $lines = append $lines "provider.gke.preferredBackends: it requires provider.name=gke and an InferencePool" -}}
{{- end -}}
{{- if $router -}}
{{- $proxy := omit (dig "proxy" dict $given | default dict) "enabled" -}}
{{- if and $proxy (not $router.router.proxy.enabled) -}}
{{- $lines = append $lines "router.proxy: no proxy is installed, because these values are for a gateway; to install one,\n  set router.proxy.enabled=true" -}}
{{- else if and (ne $epp.sidecar.mode "service") (or (hasKey $proxy "replicas") (hasKey $proxy "terminationGracePeriodSeconds")) -}}
{{- $lines = append $lines "router.proxy.replicas, router.proxy.terminationGracePeriodSeconds: the proxy runs in the picker's pod;\n  router.proxy.mode=service gives it a Deployment of its own" -}}
{{- end -}}
{{- if and $router.router.proxy.enabled (dig "priorityRouting" dict $proxy) (not $epp.sidecar.priorityRouting.enabled) -}}
{{- $lines = append $lines "router.proxy.priorityRouting: it is off; router.proxy.priorityRouting.enabled=true turns it on" -}}
{{- end -}}
{{- if and (include "warmpick.ordered" .) (hasKey (dig "epp" dict $given) "replicas") -}}
{{- $lines = append $lines "router.epp.replicas: preferredBackends or priorityRouting sets the number of replicas" -}}
{{- end -}}
{{- if dig "presets" "agentgateway" dict $proxy -}}
{{- $lines = append $lines "router.proxy.presets.agentgateway: the proxy is always Envoy" -}}
{{- end -}}
{{- if and $epp.sidecar.enabled $epp.sidecar.failOpen -}}
{{- $lines = append $lines "router.proxy.failOpen: if no picker answers, the proxy lets the request pass, but has no endpoint to send\n  it to, so it ends with 503, as with llm-d-router's own configuration of Envoy" -}}
{{- end -}}
{{- $tokenizer := omit (dig "tokenizer" dict $given | default dict) "enabled" -}}
{{- if and $tokenizer (not $epp.renderer.enabled) -}}
{{- $lines = append $lines "router.tokenizer: its container is installed only with router.tokenizer.enabled=true" -}}
{{- end -}}
{{- if and (dig "monitoring" dict $given | default dict) (not $epp.monitoring.prometheus.enabled) -}}
{{- $lines = append $lines "router.monitoring: metrics are scraped only with router.monitoring.prometheus.enabled=true" -}}
{{- end -}}
{{- if dig "monitoring" "provider" "prometheusoperator" dict $given -}}
{{- $lines = append $lines "router.monitoring.provider.prometheusoperator: it has no settings" -}}
{{- end -}}
{{- if and (dig "latencyPredictor" dict $given | default dict) (not $epp.latencyPredictor.enabled) -}}
{{- $lines = append $lines "router.latencyPredictor: it is off; router.latencyPredictor.enabled=true turns it on" -}}
{{- end -}}
{{- if and (dig "tracing" dict $given | default dict) (not $epp.tracing.enabled) -}}
{{- $lines = append $lines "router.tracing: it is off; router.tracing.enabled=true turns it on" -}}
{{- end -}}
{{- if and (not (has .Values.provider.name (list "none" "envoy-gateway"))) (not $epp.endpointsServer.createInferencePool) -}}
{{- $lines = append $lines "provider: it applies only to InferencePools, but router.inferencePool.create is false" -}}
{{- end -}}
{{- if and (dig "modelServers" "targetPortNumber" "" $given) (dig "modelServers" "targetPorts" list $given) -}}
{{- $lines = append $lines "router.modelServers.targetPortNumber: targetPorts takes precedence" -}}
{{- end -}}
{{- if and (dig "epp" "parsers" list $given) (eq .Values.inferencePool.modelServerProtocol "grpc") (eq .Values.inferencePool.modelServerType "vllm") -}}
{{- $lines = append $lines "router.epp.parsers: vLLM over gRPC always uses vllmgrpc-parser" -}}
{{- end -}}
{{- $known := .Files.Get "files/router.yaml" | fromYaml -}}
{{- range include "warmpick.unknown" (dict "known" $known "given" $given "path" "router") | trim | splitList "\n" -}}
{{- if . }}{{ $lines = append $lines (printf "%s: unknown here and in llm-d-router's charts" .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $lines }}
- {{ . }}
{{- end -}}
{{- end -}}

{{- /* What Envoy's configuration of a values file may include; llm-d-router's templates by name. */ -}}
{{- define "llm-d-router.proxy.failOpen" -}}
{{- .Values.inferenceExtension.sidecar.failOpen -}}
{{- end -}}
{{- define "llm-d-router.proxy.extProcHost" -}}
{{- include "warmpick.pickerHost" . -}}
{{- end -}}
{{- define "llm-d-router.proxy.extProcClusterType" -}}
{{- if include "warmpick.proxyService" . }}STRICT_DNS{{ else }}STATIC{{ end -}}
{{- end -}}
{{- define "llm-d-router.proxy.envoyExtProcTLSOptions" -}}
{{- if include "warmpick.secureServing" . -}}
tls_options:
  alpn_protocols: ["h2"]
{{- end -}}
{{- end -}}
{{- define "llm-d-router.proxy.envoyExtProcTransportSocket" -}}
{{- if include "warmpick.secureServing" . -}}
transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    common_tls_context:
      validation_context:
{{- end -}}
{{- end -}}
