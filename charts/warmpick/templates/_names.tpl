{{- /* Names, labels and what several objects must agree on. */ -}}

{{- define "warmpick.name" -}}
{{- printf "%s-epp" (.Release.Name | lower | trunc 40 | trimSuffix "-") -}}
{{- end -}}

{{- define "warmpick.clusterName" -}}
{{- printf "%s-%s-epp" (.Release.Name | lower | trunc 40 | trimSuffix "-") (.Release.Namespace | trunc 40 | trimSuffix "-") -}}
{{- end -}}

{{- define "warmpick.selectorLabels" -}}
{{- /* A Deployment's selector cannot change: each chart's label, so that releases can move here. */ -}}
{{- $pool := .Values.inferenceExtension.endpointsServer.createInferencePool -}}
{{- $key := ternary "inferencepool" "epp" $pool -}}
{{- if .Values.fromLlmDRouter }}{{ $key = ternary "llm-d-router-gateway" "llm-d-router-standalone" $pool }}{{ end -}}
{{ $key }}: {{ include "warmpick.name" . }}
{{- end -}}

{{- /* A value as text. Values files know one kind of number: write 67108864, not 6.7108864e+07. */ -}}
{{- define "warmpick.text" -}}
{{- if kindIs "float64" . -}}
{{- ternary (int64 .) . (eq (floor .) .) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- /* The pool's labels, as a YAML map of texts. */ -}}
{{- define "warmpick.poolLabels" -}}
{{- range $label, $value := dig "matchLabels" dict .Values.inferencePool.modelServers }}
{{ $label }}: {{ include "warmpick.text" $value | quote }}
{{- end -}}
{{- end -}}

{{- /* Of pods: no versions, so that an upgrade without a reason restarts none. */ -}}
{{- define "warmpick.podLabels" -}}
app.kubernetes.io/name: {{ include "warmpick.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: endpoint-picker
app.kubernetes.io/part-of: warmpick
{{- if .Values.fromLlmDRouter }}
llm-d.ai/igw-mode: {{ ternary "llm-d-router-gateway" "llm-d-router-standalone" .Values.inferenceExtension.endpointsServer.createInferencePool }}
{{- end }}
{{- end -}}

{{- define "warmpick.labels" -}}
{{ include "warmpick.podLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The metadata of an object in the release's namespace: the root, and the object's name. */ -}}
{{- define "warmpick.named" -}}
{{- $root := first . -}}
name: {{ last . }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- include "warmpick.labels" $root | nindent 2 }}
{{- end -}}

{{- /* ... by the picker's own name. */ -}}
{{- define "warmpick.metadata" -}}
{{- include "warmpick.named" (list . (include "warmpick.name" .)) -}}
{{- end -}}

{{- /* The providers below say "true" or nothing, so that `if include` reads well. */ -}}

{{- /* What the flag of leader election says; nothing if it is not set. */ -}}
{{- define "warmpick.leaderFlag" -}}
{{- with get .Values.inferenceExtension.flags "ha-enable-leader-election" | toString }}{{ if ne . "<nil>" }}{{ . }}{{ end }}{{ end -}}
{{- end }}

{{- /* The flag goes before the values: it is what the picker heeds. */ -}}
{{- define "warmpick.leaderElection" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $flag := include "warmpick.leaderFlag" . -}}
{{- if $flag -}}
{{- if regexMatch "^(?i:1|t|true|yes)$" $flag }}true{{ end -}}
{{- else if kindIs "bool" $epp.leaderElection -}}
{{- if $epp.leaderElection }}true{{ end -}}
{{- else if and (gt (int $epp.replicas) 1) (not $epp.autoscaling.enabled) (not (include "warmpick.ordered" .)) (not $epp.exchange.enabled) -}}
true
{{- end -}}
{{- end -}}

{{- /* Whether replicas listen for each other: they do not with a server in between. */ -}}
{{- define "warmpick.replicasListen" -}}
{{- if and .Values.inferenceExtension.exchange.enabled (not .Values.inferenceExtension.exchange.redis.url) }}true{{ end -}}
{{- end -}}

{{- /* The port of the server in between; empty: there is none. */ -}}
{{- define "warmpick.redisPort" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- if and $epp.exchange.enabled $epp.exchange.redis.url -}}
{{- regexFind ":[0-9]+$" (urlParse $epp.exchange.redis.url).host | trimPrefix ":" | default "6379" -}}
{{- end -}}
{{- end -}}

{{- /* The port of a collector of spans that is not in the pod; empty: there is none. */ -}}
{{- define "warmpick.spansPort" -}}
{{- $tracing := .Values.inferenceExtension.tracing -}}
{{- $host := regexReplaceAll "^[a-z]+://" ($tracing.otelExporterEndpoint | default "localhost") "" | splitList "/" | first -}}
{{- if and $tracing.enabled (not (regexMatch "^(localhost|127\\.[0-9.]+|\\[::1\\])(:|$)" $host)) -}}
{{- regexFind ":[0-9]+$" $host | trimPrefix ":" | default "4317" -}}
{{- end -}}
{{- end -}}

{{- /* The Secret that makes a pod a replica: the chart's, or yours. */ -}}
{{- define "warmpick.exchangeSecret" -}}
{{- .Values.inferenceExtension.exchange.secretName | default (printf "%s-replicas" (include "warmpick.name" .)) -}}
{{- end -}}

{{- define "warmpick.metricsAuth" -}}
{{- if .Values.inferenceExtension.monitoring.prometheus.auth.enabled }}true{{ end -}}
{{- end -}}

{{- define "warmpick.envoy" -}}
{{- $sidecar := .Values.inferenceExtension.sidecar -}}
{{- if and $sidecar.enabled (eq (lower $sidecar.proxyType) "envoy") }}true{{ end -}}
{{- end -}}

{{- /* The proxy as Deployment and Service of its own, and not in the picker's pod. */ -}}
{{- define "warmpick.proxyService" -}}
{{- if and (include "warmpick.envoy" .) (eq .Values.inferenceExtension.sidecar.mode "service") }}true{{ end -}}
{{- end -}}

{{- define "warmpick.sidecarRuns" -}}
{{- if and .Values.inferenceExtension.sidecar.enabled (not (include "warmpick.proxyService" .)) }}true{{ end -}}
{{- end -}}

{{- /* The chart's Envoy in the picker's pod. */ -}}
{{- define "warmpick.proxyBeside" -}}
{{- if and (include "warmpick.envoy" .) (include "warmpick.sidecarRuns" .) }}true{{ end -}}
{{- end -}}

{{- /* GKE's load balancer knows the pickers one by one, and prefers some. */ -}}
{{- define "warmpick.preferred" -}}
{{- $gke := dig "gke" "preferredBackends" dict .Values.provider -}}
{{- if and $gke.enabled (eq .Values.provider.name "gke") .Values.inferenceExtension.endpointsServer.createInferencePool }}true{{ end -}}
{{- end -}}

{{- /* How many pickers a StatefulSet has, where there is one. */ -}}
{{- define "warmpick.ordered" -}}
{{- $priority := .Values.inferenceExtension.sidecar.priorityRouting -}}
{{- if include "warmpick.preferred" . -}}
{{- with .Values.provider.gke.preferredBackends }}{{ add (int .preferredReplicas) (int .defaultReplicas) }}{{ end -}}
{{- else if and (include "warmpick.proxyService" .) $priority.enabled -}}
{{- add (int $priority.primaryReplicas) (int $priority.standbyReplicas) -}}
{{- end -}}
{{- end -}}

{{- /* What follows a name that is of picker `ordinal` of those that GKE prefers or not. */ -}}
{{- define "warmpick.preferredSuffix" -}}
{{- $preferred := int .root.Values.provider.gke.preferredBackends.preferredReplicas -}}
{{- $ordinal := int .ordinal -}}
{{- if eq $ordinal 0 -}}
{{- else if lt $ordinal $preferred -}}
-preferred-{{ $ordinal }}
{{- else if eq $ordinal $preferred -}}
-backup
{{- else -}}
-backup-{{ sub $ordinal $preferred }}
{{- end -}}
{{- end -}}

{{- /* The Service that the pool names. */ -}}
{{- define "warmpick.pickerService" -}}
{{- include "warmpick.name" . }}{{ if include "warmpick.preferred" . }}-backup{{ end -}}
{{- end -}}

{{- define "warmpick.proxyName" -}}
{{- printf "%s-proxy" (.Release.Name | lower | trunc 40 | trimSuffix "-") -}}
{{- end -}}

{{- define "warmpick.proxyLabels" -}}
llm-d-router-proxy: {{ include "warmpick.proxyName" . }}
{{- end -}}

{{- define "warmpick.envoyConfigMap" -}}
{{- dig "configMap" "name" "" .Values.inferenceExtension.sidecar | default (printf "%s-envoy" (include "warmpick.name" .)) -}}
{{- end -}}

{{- /* Where pickers tell each other what they see, a proxy of their own knows them all. */ -}}
{{- define "warmpick.proxyKnowsReplicas" -}}
{{- if and .Values.inferenceExtension.exchange.enabled (include "warmpick.proxyService" .) (not (include "warmpick.ordered" .)) }}true{{ end -}}
{{- end -}}

{{- /* Where the proxy asks for picks. */ -}}
{{- define "warmpick.pickerHost" -}}
{{- if include "warmpick.proxyKnowsReplicas" . -}}
{{- printf "%s-replicas.%s.svc.%s" (include "warmpick.name" .) .Release.Namespace .Values.inferenceExtension.clusterDomain -}}
{{- else if include "warmpick.proxyService" . -}}
{{- printf "%s.%s.svc.%s" (include "warmpick.name" .) .Release.Namespace .Values.inferenceExtension.clusterDomain -}}
{{- else -}}
127.0.0.1
{{- end -}}
{{- end -}}

{{- define "warmpick.pickerPort" -}}
{{- if and (include "warmpick.proxyService" .) (not (include "warmpick.proxyKnowsReplicas" .)) -}}
{{- int .Values.inferenceExtension.extProcPort -}}
{{- else -}}
{{- include "warmpick.grpcPort" . -}}
{{- end -}}
{{- end -}}

{{- /* Of the container. */ -}}
{{- define "warmpick.grpcPort" -}}
{{- index .Values.inferenceExtension.flags "grpc-port" | default 9002 | int -}}
{{- end -}}

{{- /* The Service's ports besides the picker's own; `http` is the proxy's. */ -}}
{{- define "warmpick.clientPorts" -}}
{{- $ports := .Values.inferenceExtension.extraServicePorts | default list -}}
{{- $http := false -}}
{{- range $ports }}{{ if eq .name "http" }}{{ $http = true }}{{ end }}{{ end -}}
{{- if and (include "warmpick.envoy" .) (not $http) -}}
{{- $ports = prepend $ports (dict "name" "http" "protocol" "TCP" "port" 8081 "targetPort" 8081) -}}
{{- end -}}
{{- /* Before Kubernetes 1.32 the names of a sidecar container's ports are unknown to Services. */ -}}
{{- $named := dict -}}
{{- if include "warmpick.proxyBeside" . -}}
{{- range (include "warmpick.sidecar" . | fromYaml).ports }}{{ $_ := set $named (.name | default "") (int .containerPort) }}{{ end -}}
{{- end -}}
{{- $numbered := list -}}
{{- range $ports -}}
{{- $name := toString .targetPort -}}
{{- $numbered = append $numbered (ternary (merge (dict "targetPort" (get $named $name)) .) . (hasKey $named $name)) -}}
{{- end -}}
{{- if $numbered }}{{ toYaml $numbered }}{{ end -}}
{{- end -}}

{{- /* gmp or prometheusoperator. */ -}}
{{- define "warmpick.monitoringProvider" -}}
{{- .Values.inferenceExtension.monitoring.provider | default (ternary "gmp" "prometheusoperator" (eq .Values.provider.name "gke")) -}}
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
{{- $flags := include "warmpick.flags" . | fromYaml -}}
{{- $pool := get $flags "pool-name" | default (include "warmpick.name" .) -}}
{{- printf "epp-%s-%s.llm-d.ai" (get $flags "pool-namespace" | default .Release.Namespace) $pool -}}
{{- end -}}

{{- /* The model servers' pods, as a LabelSelector. */ -}}
{{- define "warmpick.modelServerSelector" -}}
matchLabels:
{{- if .Values.inferenceExtension.endpointsServer.createInferencePool }}
  {{- include "warmpick.poolLabels" . | trim | nindent 2 }}
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
{{- $terms = append $terms (printf "%s=%s" $label (include "warmpick.text" $value)) -}}
{{- end -}}
{{- join "," $terms -}}
{{- else -}}
{{- .Values.inferenceExtension.endpointsServer.endpointSelector -}}
{{- end -}}
{{- end -}}
