{{- /* What values.schema.json cannot say: each failure names the value and the remedy. */ -}}
{{- define "warmpick.checks" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $pool := .Values.inferencePool -}}
{{- $leader := include "warmpick.leaderElection" . -}}
{{- $isPool := $epp.endpointsServer.createInferencePool -}}
{{- $router := not (not .Values.fromLlmDRouter) -}}
{{- $proxy := ternary "router.proxy" "inferenceExtension.sidecar" $router -}}
{{- $renderer := ternary "router.tokenizer" "inferenceExtension.renderer" $router -}}
{{- $picker := ternary "router.epp" "inferenceExtension" $router -}}
{{- $create := ternary "router.inferencePool.create" "inferenceExtension.endpointsServer.createInferencePool" $router -}}
{{- $noLeader := "set inferenceExtension.leaderElection=false" -}}
{{- if include "warmpick.leaderFlag" . -}}
{{- $noLeader = printf "leave out %s.flags.ha-enable-leader-election" $picker -}}
{{- end -}}

{{- if and $isPool (or $pool.create $epp.networkPolicy.enabled) (not (dig "matchLabels" dict $pool.modelServers)) -}}
{{- $where := ternary "router.modelServers" "inferencePool.modelServers" $router -}}
{{- fail (printf "%s.matchLabels is required: set it to the labels of your model servers' pods, such as --set %s.matchLabels.app=vllm-qwen3-32b" $where $where) -}}
{{- end -}}
{{- if and (not $isPool) (not $epp.endpointsServer.endpointSelector) -}}
{{- if $router }}{{ fail "router.modelServers.matchLabels is required: set it to the labels of your model servers' pods, such as --set router.modelServers.matchLabels.app=vllm-qwen3-32b" }}{{ end -}}
{{- fail "inferenceExtension.endpointsServer.endpointSelector is required if createInferencePool is false: set it to the labels of your model servers' pods, such as app=vllm-qwen3-32b" -}}
{{- end -}}
{{- if and (not $isPool) .Values.experimentalHttpRoute.enabled (ne .Values.provider.name "envoy-gateway") -}}
{{- fail (printf "%s requires an InferencePool to route to: set %s=true, or turn the route off and send requests to the proxy" (ternary "httpRoute.create" "experimentalHttpRoute.enabled" $router) $create) -}}
{{- end -}}
{{- if and (not $isPool) .Values.inferenceObjectives -}}
{{- fail (printf "%sinferenceObjectives requires an InferencePool to refer to: set %s=true, or remove the objectives" (ternary "router." "" $router) $create) -}}
{{- end -}}
{{- $ports := splitList "," (include "warmpick.targetPorts" .) -}}
{{- $portsAt := ternary "inferencePool.targetPorts" "inferenceExtension.endpointsServer.targetPorts" $isPool -}}
{{- if $router }}{{ $portsAt = "router.modelServers.targetPorts" }}{{ end -}}
{{- if gt (len $ports) 8 -}}
{{- fail (printf "%s lists %d ports, but a pool has at most 8: remove some" $portsAt (len $ports)) -}}
{{- end -}}
{{- if ne (len (uniq $ports)) (len $ports) -}}
{{- fail (printf "%s lists a port more than once (%s): keep each only once" $portsAt (join ", " $ports)) -}}
{{- end -}}
{{- range $ports -}}
{{- if or (lt (int .) 1) (gt (int .) 65535) -}}
{{- fail (printf "%s must list ports from 1 to 65535, such as [8000] or \"8000,8001\", but is %q" $portsAt (toString $epp.endpointsServer.targetPorts)) -}}
{{- end -}}
{{- end -}}
{{- include "warmpick.flagChecks" . -}}
{{- $files := include "warmpick.configuration" . | fromYaml -}}
{{- if not (hasKey $files $epp.pluginsConfigFile) -}}
{{- fail (printf "%s.pluginsConfigFile is %q, but there is no such file: add it to %s.pluginsCustomConfig, or choose one of %s" $picker $epp.pluginsConfigFile $picker (keys $files | sortAlpha | join ", ")) -}}
{{- end -}}

{{- if and $epp.autoscaling.enabled $leader -}}
{{- fail (printf "%s.autoscaling does not work with leader election, because only the leader serves: turn it off, or %s" $picker $noLeader) -}}
{{- end -}}
{{- if and $epp.autoscaling.enabled (gt (int $epp.autoscaling.minReplicas) (int $epp.autoscaling.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling.minReplicas is greater than maxReplicas: lower it, or raise maxReplicas" $picker) -}}
{{- end -}}
{{- if and $epp.podDisruptionBudget.enabled $leader -}}
{{- fail (printf "inferenceExtension.podDisruptionBudget would keep nodes from draining, because with leader election only the leader is ever ready: turn it off, or %s" $noLeader) -}}
{{- end -}}
{{- if and $epp.exchange.enabled $leader -}}
{{- fail (printf "inferenceExtension.exchange does not work with leader election, because only the leader serves: turn it off, or %s" $noLeader) -}}
{{- end -}}
{{- if and $epp.exchange.enabled $router -}}
{{- fail "inferenceExtension.exchange cannot be used with router.*, because llm-d-router does not have its flags: use inferenceExtension.* instead of router.*" -}}
{{- end -}}
{{- if and (gt (int $epp.workers) 1) $leader -}}
{{- fail "inferenceExtension.workers does not work with leader election, because only the leader serves: set inferenceExtension.exchange.enabled=true, or leave inferenceExtension.replicas at 1" -}}
{{- end -}}
{{- if and (gt (int $epp.workers) 1) $router -}}
{{- fail "inferenceExtension.workers cannot be used with router.*, because llm-d-router does not have its flag: use inferenceExtension.* instead of router.*" -}}
{{- end -}}
{{- if and (gt (int $epp.workers) 1) (gt (add (int $epp.exchange.port) (int $epp.workers) -1) 65535) -}}
{{- fail (printf "inferenceExtension.exchange.port is %d, but each of the %d workers needs a port from there on: choose %d or lower" (int $epp.exchange.port) (int $epp.workers) (sub 65536 (int $epp.workers))) -}}
{{- end -}}
{{- if and $epp.tls.secretName $epp.tls.certManager.enabled -}}
{{- fail "inferenceExtension.tls.secretName and tls.certManager.enabled are both set: keep only one" -}}
{{- end -}}
{{- if and $epp.tls.certManager.enabled (not $epp.tls.certManager.issuerRef.name) -}}
{{- fail "inferenceExtension.tls.certManager.issuerRef.name is required: name an Issuer in this namespace, or a ClusterIssuer with issuerRef.kind=ClusterIssuer" -}}
{{- end -}}
{{- include "warmpick.redisChecks" . -}}
{{- if and $epp.kvEvents.enabled (not $epp.tokenizer.path) -}}
{{- fail "inferenceExtension.kvEvents requires a tokenizer: set inferenceExtension.tokenizer.path (a folder with tokenizer.json, from inferenceExtension.volumes) and tokenizer.modelName" -}}
{{- end -}}
{{- if and $epp.tokenizer.path (not $epp.tokenizer.modelName) -}}
{{- fail "inferenceExtension.tokenizer.modelName is required: set it to the model's name in requests" -}}
{{- end -}}
{{- $instead := or (hasKey $epp.flags "config-text") (hasKey $epp.flags "policy") -}}
{{- if and (or $epp.kvEvents.enabled $epp.tokenizer.path) $instead -}}
{{- fail "inferenceExtension.tokenizer and kvEvents are written into default-plugins.yaml, which is not read if the flag config-text or policy is set: remove the flag, or tokenizer and kvEvents" -}}
{{- end -}}
{{- if and (or $epp.kvEvents.enabled $epp.tokenizer.path) (not (has $epp.pluginsConfigFile (list "default-plugins.yaml" "least-ttft.yaml"))) -}}
{{- fail (printf "inferenceExtension.tokenizer and kvEvents are written into default-plugins.yaml, but pluginsConfigFile is %q: write token-producer and precise-prefix-cache-producer into that file instead" $epp.pluginsConfigFile) -}}
{{- end -}}
{{- if and (eq .Values.provider.name "gke") (not $isPool) (not $router) -}}
{{- fail "provider.name=gke requires an InferencePool: set inferenceExtension.endpointsServer.createInferencePool=true, or provider.name=none" -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (not (has (lower $epp.sidecar.proxyType) (list "" "envoy"))) -}}
{{- fail (printf "%s.proxyType is %q, but this chart supports only envoy. For another proxy, %s" $proxy $epp.sidecar.proxyType (ternary "install it yourself and set router.proxy.enabled=false" "leave proxyType empty and set name, image and args" $router)) -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (not $epp.sidecar.proxyType) (not (and $epp.sidecar.name $epp.sidecar.image)) -}}
{{- fail "inferenceExtension.sidecar.enabled requires a proxy: set inferenceExtension.sidecar.proxyType=envoy, or name and image for a container of your own" -}}
{{- end -}}

{{- if and (not $isPool) (not (regexMatch "^[\\w./-]*\\w==?[\\w.-]+(,[\\w./-]*\\w==?[\\w.-]+)*$" $epp.endpointsServer.endpointSelector)) -}}
{{- fail (printf "inferenceExtension.endpointsServer.endpointSelector is %q, but only equality is supported: write label=value pairs, such as app=vllm,role=decode" $epp.endpointsServer.endpointSelector) -}}
{{- end -}}

{{- if and $epp.sidecar.enabled (not (has $epp.sidecar.mode (list "sidecar" "service"))) -}}
{{- fail (printf "%s.mode is %q, but must be sidecar (in the picker's pod) or service (a Deployment of its own)" $proxy $epp.sidecar.mode) -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (eq $epp.sidecar.mode "service") (not (include "warmpick.envoy" .)) -}}
{{- fail (printf "%s.mode=service requires the chart's own Envoy: set %s.proxyType=envoy" $proxy $proxy) -}}
{{- end -}}
{{- if include "warmpick.proxyBeside" . -}}
{{- range $how, $what := $epp.sidecar.startupProbe -}}
{{- if has $how (list "httpGet" "grpc") -}}
{{- fail (printf "%s.startupProbe asks the proxy by %s, but the picker starts only when that has succeeded, and the proxy answers only with a picker: use %s.readinessProbe, or tcpSocket" $proxy $how $proxy) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $epp.extraServicePorts -}}
{{- if has .name (list "http-metrics" "grpc-ext-proc") -}}
{{- fail (printf "%s.extraServicePorts lists %q, which the Service always has: remove it" (ternary "router" "inferenceExtension" $router) .name) -}}
{{- end -}}
{{- end -}}
{{- include "warmpick.portChecks" . -}}
{{- if and $epp.pluginsConfig (hasKey $epp.pluginsCustomConfig $epp.pluginsConfigFile) -}}
{{- fail (printf "%s.pluginsConfig and %s.pluginsCustomConfig both define %q: keep only one" $picker $picker $epp.pluginsConfigFile) -}}
{{- end -}}
{{- if and $epp.renderer.enabled (not $epp.renderer.modelName) -}}
{{- fail (printf "%s.modelName is required: set it to the model whose requests are rendered" $renderer) -}}
{{- end -}}
{{- if and $epp.renderer.enabled (not (has ($epp.renderer.flavor | default "python") (list "python" "rust"))) -}}
{{- fail (printf "%s.flavor is %q, but must be python (vllm launch render) or rust (vllm-rs render)" $renderer $epp.renderer.flavor) -}}
{{- end -}}
{{- if and (eq $pool.apiVersion "inference.networking.x-k8s.io/v1alpha2") (gt (len $pool.targetPorts) 1) -}}
{{- fail "inferencePool.apiVersion is inference.networking.x-k8s.io/v1alpha2, which allows only one port: keep one in inferencePool.targetPorts, or set apiVersion to inference.networking.k8s.io/v1" -}}
{{- end -}}
{{- if and $epp.sidecar.enabled $epp.sidecar.priorityRouting.enabled (ne $epp.sidecar.mode "service") -}}
{{- fail (printf "%s.priorityRouting requires a proxy with its own Deployment: set %s.mode=service" $proxy $proxy) -}}
{{- end -}}
{{- if include "warmpick.ordered" . -}}
{{- $why := ternary "provider.gke.preferredBackends" (printf "%s.priorityRouting" $proxy) (eq (include "warmpick.preferred" .) "true") -}}
{{- if $epp.autoscaling.enabled -}}
{{- fail (printf "%s.autoscaling requires a Deployment, but %s makes a StatefulSet: turn one of them off" $picker $why) -}}
{{- end -}}
{{- if and $leader (gt (include "warmpick.ordered" . | int) 1) -}}
{{- fail (printf "%s makes a StatefulSet, whose roll-out waits until each pod is ready, but with leader election only the leader ever is: %s" $why $noLeader) -}}
{{- end -}}
{{- end -}}
{{- $own := dig "configMap" "data" "envoy.yaml" "" $epp.sidecar -}}
{{- if and (include "warmpick.envoy" .) (not $own) (include "warmpick.flagIsOff" (dict "root" . "name" "health-checking")) -}}
{{- fail (printf "%s.flags.health-checking is false, but the proxy checks the picker's health on the ext_proc port: remove the flag" $picker) -}}
{{- end -}}
{{- if eq .Values.provider.name "envoy-gateway" }}{{ include "warmpick.envoyGatewayChecks" . }}{{ end -}}
{{- with .Values.fromLlmDRouter }}{{ include "warmpick.llmDRouterChecks" (dict "root" $ "router" .router) }}{{ end -}}
{{- end -}}

{{- /* A Redis server that the picker would refuse. */ -}}
{{- define "warmpick.redisChecks" -}}
{{- $url := .Values.inferenceExtension.exchange.redis.url -}}
{{- $port := include "warmpick.redisPort" . | default "6379" | int -}}
{{- $server := "://([^@/?]*@)?([^@/?:\\[\\]\\s]+|\\[[0-9A-Fa-f:.]+\\])(:\\d*)?(/\\d{0,5})?" -}}
{{- $file := "ssl_(ca_certs|certfile|keyfile)=[^&]*" -}}
{{- $form := printf "^redis(%[1]s|s%[1]s(\\?%[2]s(&%[2]s)*)?)$" $server $file -}}
{{- if and $url (or (lt $port 1) (gt $port 65535) (not (regexMatch $form $url))) -}}
{{- fail (printf "inferenceExtension.exchange.redis.url is %q, but must be redis://[USER@]HOST[:PORT][/DATABASE], or rediss://..., which may end with the options ssl_ca_certs, ssl_certfile and ssl_keyfile" $url) -}}
{{- end -}}
{{- end -}}

{{- /*
Null takes a default away, and so does `helm upgrade --reuse-values` from a chart that did not have the
value. The templates do without most defaults, but not without these; a map comes before what is in it.
*/ -}}
{{- define "warmpick.nullChecks" -}}
{{- $paths := list "inferenceExtension" "inferencePool" "provider" "experimentalHttpRoute" -}}
{{- range list
      "replicas" "image" "image.registry" "image.repository" "extProcPort" "metricsPort"
      "grpcHealthPort" "failureMode" "clusterDomain" "policy" "pluginsConfigFile" "workers"
      "endpointsServer" "endpointsServer.createInferencePool" "sidecar" "sidecar.replicas"
      "sidecar.terminationGracePeriodSeconds" "sidecar.healthCheckInterval"
      "sidecar.healthCheckTimeout" "sidecar.healthCheckUnhealthyThreshold"
      "sidecar.healthCheckHealthyThreshold"
      "monitoring" "monitoring.interval" "monitoring.prometheus" "monitoring.prometheus.auth"
      "monitoring.prometheus.auth.enabled" "monitoring.prometheus.auth.secretName" "tracing"
      "latencyPredictor" "metricsDataSource"
      "metricsDataSource.scheme" "metricsDataSource.path" "metricsDataSource.insecureSkipVerify"
      "renderer" "exchange" "exchange.port" "serviceAccount" "tls" "tls.certManager" "tokenizer"
      "kvEvents" "kvEvents.port" "recording" "recording.maxBytes" "podDisruptionBudget"
      "podDisruptionBudget.maxUnavailable" "autoscaling" "terminationGracePeriodSeconds" -}}
{{- $paths = append $paths (printf "inferenceExtension.%s" .) -}}
{{- end -}}
{{- range list "create" "targetPorts" "modelServerType" "modelServers" -}}
{{- $paths = append $paths (printf "inferencePool.%s" .) -}}
{{- end -}}
{{- range $path := $paths -}}
{{- $value := $.Values -}}
{{- range splitList "." $path }}{{ $value = index $value . }}{{ end -}}
{{- if kindIs "invalid" $value -}}
{{- fail (printf "%s is null: leave it out, for the chart's default, or give it a value. If you upgrade with --reuse-values, use --reset-then-reuse-values instead" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What the charts of llm-d-router refuse, too. */ -}}
{{- define "warmpick.llmDRouterChecks" -}}
{{- with .router -}}
{{- if and .proxy.autoscaling.enabled (ne .proxy.mode "service") -}}
{{- fail "router.proxy.autoscaling requires a proxy with its own Deployment: set router.proxy.mode=service" -}}
{{- end -}}
{{- if not (has (lower .monitoring.provider.name) (list "" "gmp" "prometheusoperator")) -}}
{{- fail (printf "router.monitoring.provider.name is %q, but must be gmp or prometheusoperator" .monitoring.provider.name) -}}
{{- end -}}
{{- range $path, $scaling := dict "router.epp.autoscaling" .epp.autoscaling "router.proxy.autoscaling" .proxy.autoscaling -}}
{{- if $scaling.enabled -}}
{{- if lt (int $scaling.minReplicas) 1 }}{{ fail (printf "%s.minReplicas is %v, but must be at least 1" $path $scaling.minReplicas) }}{{ end -}}
{{- if lt (int $scaling.maxReplicas) (int $scaling.minReplicas) }}{{ fail (printf "%s.minReplicas is greater than maxReplicas: lower it, or raise maxReplicas" $path) }}{{ end -}}
{{- range $name := list "targetCPUUtilizationPercentage" "targetMemoryUtilizationPercentage" -}}
{{- $percent := get $scaling $name -}}
{{- if and (not (kindIs "invalid" $percent)) (ne (toString $percent) "") (or (lt (int $percent) 1) (gt (int $percent) 100)) -}}
{{- fail (printf "%s.%s is %v, but must be from 1 to 100" $path $name $percent) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
