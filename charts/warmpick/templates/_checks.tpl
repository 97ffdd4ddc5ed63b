{{- /* What values.schema.json cannot say: each failure names the value and the remedy. */ -}}
{{- define "warmpick.checks" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $pool := .Values.inferencePool -}}
{{- $leader := include "warmpick.leaderElection" . -}}
{{- $isPool := $epp.endpointsServer.createInferencePool -}}
{{- $router := .Values.fromLlmDRouter -}}
{{- $proxy := ternary "router.proxy" "inferenceExtension.sidecar" (not (not $router)) -}}
{{- $renderer := ternary "router.tokenizer" "inferenceExtension.renderer" (not (not $router)) -}}
{{- $picker := ternary "router.epp" "inferenceExtension" (not (not $router)) -}}
{{- $noLeader := "set inferenceExtension.leaderElection=false" -}}
{{- if include "warmpick.leaderFlag" . -}}
{{- $noLeader = printf "leave out %s.flags.ha-enable-leader-election" $picker -}}
{{- end -}}

{{- if and $isPool (or $pool.create $epp.networkPolicy.enabled) (not (dig "matchLabels" dict $pool.modelServers)) -}}
{{- $where := ternary "router.modelServers" "inferencePool.modelServers" (not (not $router)) -}}
{{- fail (printf "%s.matchLabels is needed: the labels of your model servers' pods, such as --set %s.matchLabels.app=vllm-qwen3-32b" $where $where) -}}
{{- end -}}
{{- if and (not $isPool) (not $epp.endpointsServer.endpointSelector) -}}
{{- if $router }}{{ fail "router.modelServers.matchLabels is needed: the labels of your model servers' pods, such as --set router.modelServers.matchLabels.app=vllm-qwen3-32b" }}{{ end -}}
{{- fail "inferenceExtension.endpointsServer.endpointSelector is needed where createInferencePool is false: the labels of your model servers' pods, such as app=vllm-qwen3-32b" -}}
{{- end -}}
{{- if and (not $isPool) .Values.experimentalHttpRoute.enabled (ne .Values.provider.name "envoy-gateway") -}}
{{- $create := ternary "router.inferencePool.create" "inferenceExtension.endpointsServer.createInferencePool" (not (not $router)) -}}
{{- fail (printf "%s needs an InferencePool to route to: set %s=true, or send clients to the sidecar" (ternary "httpRoute.create" "experimentalHttpRoute.enabled" (not (not $router))) $create) -}}
{{- end -}}
{{- if and (not $isPool) .Values.inferenceObjectives -}}
{{- $create := ternary "router.inferencePool.create" "inferenceExtension.endpointsServer.createInferencePool" (not (not $router)) -}}
{{- fail (printf "%sinferenceObjectives needs an InferencePool to refer to: set %s=true, or leave it empty" (ternary "router." "" (not (not $router))) $create) -}}
{{- end -}}
{{- $ports := splitList "," (include "warmpick.targetPorts" .) -}}
{{- if gt (len $ports) 8 -}}
{{- fail (printf "a pool has 1 to 8 target ports, not %d" (len $ports)) -}}
{{- end -}}
{{- if ne (len (uniq $ports)) (len $ports) -}}
{{- fail (printf "target ports must differ, and these do not: %s" (join ", " $ports)) -}}
{{- end -}}
{{- range $ports -}}
{{- if or (lt (int .) 1) (gt (int .) 65535) -}}
{{- fail (printf "target ports are numbers from 1 to 65535: write targetPorts: [8000] or \"8000,8001\", not %q" (toString $epp.endpointsServer.targetPorts)) -}}
{{- end -}}
{{- end -}}
{{- $files := include "warmpick.configuration" . | fromYaml -}}
{{- if not (hasKey $files $epp.pluginsConfigFile) -}}
{{- fail (printf "%s.pluginsConfigFile is %q, which %s.pluginsCustomConfig has not; there are: %s" $picker $epp.pluginsConfigFile $picker (keys $files | sortAlpha | join ", ")) -}}
{{- end -}}

{{- if and $epp.autoscaling.enabled $leader -}}
{{- fail (printf "%s.autoscaling is for replicas that all serve: leave it off, or %s" $picker $noLeader) -}}
{{- end -}}
{{- if and $epp.autoscaling.enabled (gt (int $epp.autoscaling.minReplicas) (int $epp.autoscaling.maxReplicas)) -}}
{{- fail (printf "%s.autoscaling.minReplicas is more than maxReplicas" $picker) -}}
{{- end -}}
{{- if and $epp.podDisruptionBudget.enabled $leader -}}
{{- fail (printf "inferenceExtension.podDisruptionBudget would keep nodes from draining: only the leader is ever ready. Leave it off, or %s" $noLeader) -}}
{{- end -}}
{{- if and $epp.exchange.enabled $leader -}}
{{- fail (printf "inferenceExtension.exchange is for replicas that all serve: %s" $noLeader) -}}
{{- end -}}
{{- if and $epp.exchange.enabled $router -}}
{{- fail "inferenceExtension.exchange sets flags that llm-d-router does not have: use inferenceExtension.* in place of router.*" -}}
{{- end -}}
{{- if and (gt (int $epp.workers) 1) $leader -}}
{{- fail "inferenceExtension.workers is for replicas that all serve: set exchange.enabled=true with it, or leave replicas at 1" -}}
{{- end -}}
{{- if and (gt (int $epp.workers) 1) $router -}}
{{- fail "inferenceExtension.workers sets a flag that llm-d-router does not have: use inferenceExtension.* in place of router.*" -}}
{{- end -}}
{{- if and (gt (int $epp.workers) 1) (gt (add (int $epp.exchange.port) (int $epp.workers) -1) 65535) -}}
{{- fail "inferenceExtension.exchange.port has no room for a port of each worker: take a lower one" -}}
{{- end -}}
{{- if and $epp.tls.secretName $epp.tls.certManager.enabled -}}
{{- fail "inferenceExtension.tls has both secretName and certManager.enabled: keep one" -}}
{{- end -}}
{{- if and $epp.tls.certManager.enabled (not $epp.tls.certManager.issuerRef.name) -}}
{{- fail "inferenceExtension.tls.certManager.issuerRef.name is needed: an Issuer of this namespace, or a ClusterIssuer with issuerRef.kind=ClusterIssuer" -}}
{{- end -}}
{{- if and $epp.kvEvents.enabled (not $epp.tokenizer.path) -}}
{{- fail "inferenceExtension.kvEvents are of tokens: set inferenceExtension.tokenizer.path (a folder with tokenizer.json, from inferenceExtension.volumes) and tokenizer.modelName" -}}
{{- end -}}
{{- if and $epp.tokenizer.path (not $epp.tokenizer.modelName) -}}
{{- fail "inferenceExtension.tokenizer.modelName is needed: the model's name in requests" -}}
{{- end -}}
{{- $instead := or (hasKey $epp.flags "config-text") (hasKey $epp.flags "policy") -}}
{{- if and (or $epp.kvEvents.enabled $epp.tokenizer.path) $instead -}}
{{- fail "inferenceExtension.tokenizer and kvEvents go into default-plugins.yaml, in place of which the flags config-text and policy are read: leave one or the other out" -}}
{{- end -}}
{{- if and (or $epp.kvEvents.enabled $epp.tokenizer.path) (not (has $epp.pluginsConfigFile (list "default-plugins.yaml" "least-ttft.yaml"))) -}}
{{- fail "inferenceExtension.tokenizer and kvEvents go into default-plugins.yaml, which pluginsConfigFile does not name: write token-producer and precise-prefix-cache-producer into your own file" -}}
{{- end -}}
{{- if and (eq .Values.provider.name "gke") (not $isPool) (not $router) -}}
{{- fail "provider.name=gke is about InferencePools: set it to none where createInferencePool is false" -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (not (has (lower $epp.sidecar.proxyType) (list "" "envoy"))) -}}
{{- fail (printf "%s.proxyType is %q; this chart knows envoy. For another proxy %s" $proxy $epp.sidecar.proxyType (ternary "install it yourself, with router.proxy.enabled=false here" "leave it empty and give name, image and args yourself" (not (not $router)))) -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (not $epp.sidecar.proxyType) (not (and $epp.sidecar.name $epp.sidecar.image)) -}}
{{- fail "inferenceExtension.sidecar.enabled needs proxyType=envoy, or a container of your own with name and image" -}}
{{- end -}}

{{- if and (not $isPool) (not (regexMatch "^[^=!,() ]+==?[^=!,() ]+(,[^=!,() ]+==?[^=!,() ]+)*$" $epp.endpointsServer.endpointSelector)) -}}
{{- fail (printf "inferenceExtension.endpointsServer.endpointSelector is %q; write labels and values as app=vllm,role=decode" $epp.endpointsServer.endpointSelector) -}}
{{- end -}}

{{- if and $epp.sidecar.enabled (not (has $epp.sidecar.mode (list "sidecar" "service"))) -}}
{{- fail (printf "%s.mode is %q; it is sidecar (beside the picker) or service (a Deployment of its own)" $proxy $epp.sidecar.mode) -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (eq $epp.sidecar.mode "service") (not (include "warmpick.envoy" .)) -}}
{{- fail (printf "%s.mode=service is for the chart's own Envoy: set %s.proxyType=envoy" $proxy $proxy) -}}
{{- end -}}
{{- range $epp.extraServicePorts -}}
{{- if has .name (list "http-metrics" "grpc-ext-proc") -}}
{{- fail (printf "extraServicePorts has %q, which the Service has anyway: leave it out" .name) -}}
{{- end -}}
{{- end -}}
{{- include "warmpick.portChecks" . -}}
{{- if and $epp.pluginsConfig (hasKey $epp.pluginsCustomConfig $epp.pluginsConfigFile) -}}
{{- fail (printf "pluginsConfig and pluginsCustomConfig both have %q: keep one" $epp.pluginsConfigFile) -}}
{{- end -}}
{{- if and $epp.renderer.enabled (not $epp.renderer.modelName) -}}
{{- fail (printf "%s.modelName is needed: whose requests are rendered" $renderer) -}}
{{- end -}}
{{- if and $epp.renderer.enabled (not (has ($epp.renderer.flavor | default "python") (list "python" "rust"))) -}}
{{- fail (printf "%s.flavor is %q; it is python (vllm launch render) or rust (vllm-rs render)" $renderer $epp.renderer.flavor) -}}
{{- end -}}
{{- if and (eq $pool.apiVersion "inference.networking.x-k8s.io/v1alpha2") (gt (len $pool.targetPorts) 1) -}}
{{- fail "inferencePool.apiVersion is inference.networking.x-k8s.io/v1alpha2, whose pools have one port: leave one in inferencePool.targetPorts, or set it to inference.networking.k8s.io/v1" -}}
{{- end -}}
{{- if and $epp.sidecar.enabled $epp.sidecar.priorityRouting.enabled (ne $epp.sidecar.mode "service") -}}
{{- fail (printf "%s.priorityRouting is for a proxy of its own: set %s.mode=service" $proxy $proxy) -}}
{{- end -}}
{{- if include "warmpick.ordered" . -}}
{{- $why := ternary "provider.gke.preferredBackends" (printf "%s.priorityRouting" $proxy) (eq (include "warmpick.preferred" .) "true") -}}
{{- if $epp.autoscaling.enabled -}}
{{- fail (printf "%s.autoscaling is for a Deployment, and %s makes a StatefulSet: keep one" $picker $why) -}}
{{- end -}}
{{- if and $leader (gt (include "warmpick.ordered" . | int) 1) -}}
{{- fail (printf "%s makes a StatefulSet, whose roll-out waits for each pod to be ready, and only the leader is ever ready: %s" $why $noLeader) -}}
{{- end -}}
{{- end -}}
{{- $own := dig "configMap" "data" "envoy.yaml" "" $epp.sidecar -}}
{{- if and (include "warmpick.envoy" .) (not $own) (include "warmpick.flagIsOff" (dict "root" . "name" "health-checking")) -}}
{{- fail (printf "%s.flags.health-checking is false, and the proxy asks for the picker's health at its port for picks: leave it out" $picker) -}}
{{- end -}}
{{- if eq .Values.provider.name "envoy-gateway" }}{{ include "warmpick.envoyGatewayChecks" . }}{{ end -}}
{{- with .Values.fromLlmDRouter }}{{ include "warmpick.llmDRouterChecks" (dict "root" $ "router" .router) }}{{ end -}}
{{- end -}}

{{- /* What the charts of llm-d-router refuse, too. */ -}}
{{- define "warmpick.llmDRouterChecks" -}}
{{- with .router -}}
{{- if and .proxy.autoscaling.enabled (ne .proxy.mode "service") -}}
{{- fail "router.proxy.autoscaling is for proxies of their own: set router.proxy.mode=service" -}}
{{- end -}}
{{- if not (has (lower .monitoring.provider.name) (list "" "gmp" "prometheusoperator")) -}}
{{- fail (printf "router.monitoring.provider.name is %q; it is gmp or prometheusoperator" .monitoring.provider.name) -}}
{{- end -}}
{{- range $path, $scaling := dict "router.epp.autoscaling" .epp.autoscaling "router.proxy.autoscaling" .proxy.autoscaling -}}
{{- if $scaling.enabled -}}
{{- if lt (int $scaling.minReplicas) 1 }}{{ fail (printf "%s.minReplicas is %v; it is 1 or more" $path $scaling.minReplicas) }}{{ end -}}
{{- if lt (int $scaling.maxReplicas) (int $scaling.minReplicas) }}{{ fail (printf "%s.minReplicas is more than maxReplicas" $path) }}{{ end -}}
{{- range $name := list "targetCPUUtilizationPercentage" "targetMemoryUtilizationPercentage" -}}
{{- $percent := get $scaling $name -}}
{{- if and (not (kindIs "invalid" $percent)) (ne (toString $percent) "") (or (lt (int $percent) 1) (gt (int $percent) 100)) -}}
{{- fail (printf "%s.%s is %v; it is 1 to 100" $path $name $percent) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
