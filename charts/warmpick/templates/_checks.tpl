{{- /* What values.schema.json cannot say: each failure names the value and the remedy. */ -}}
{{- define "warmpick.checks" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $pool := .Values.inferencePool -}}
{{- $leader := include "warmpick.leaderElection" . -}}
{{- $isPool := $epp.endpointsServer.createInferencePool -}}

{{- if and $isPool (or $pool.create $epp.networkPolicy.enabled) (not (dig "matchLabels" dict $pool.modelServers)) -}}
{{- fail "inferencePool.modelServers.matchLabels is needed: the labels of your model servers' pods, such as --set inferencePool.modelServers.matchLabels.app=vllm-qwen3-32b" -}}
{{- end -}}
{{- if and (not $isPool) (not $epp.endpointsServer.endpointSelector) -}}
{{- fail "inferenceExtension.endpointsServer.endpointSelector is needed where createInferencePool is false: the labels of your model servers' pods, such as app=vllm-qwen3-32b" -}}
{{- end -}}
{{- if and (not $isPool) .Values.experimentalHttpRoute.enabled -}}
{{- fail "experimentalHttpRoute.enabled needs an InferencePool to route to: set inferenceExtension.endpointsServer.createInferencePool=true, or send clients to the sidecar" -}}
{{- end -}}
{{- if and (not $isPool) .Values.inferenceObjectives -}}
{{- fail "inferenceObjectives needs an InferencePool to refer to: set inferenceExtension.endpointsServer.createInferencePool=true, or leave it empty" -}}
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
{{- if not (or (eq $epp.pluginsConfigFile "default-plugins.yaml") (hasKey $epp.pluginsCustomConfig $epp.pluginsConfigFile)) -}}
{{- fail (printf "inferenceExtension.pluginsConfigFile is %q, which inferenceExtension.pluginsCustomConfig has not; it has: %s" $epp.pluginsConfigFile (keys $epp.pluginsCustomConfig | sortAlpha | join ", " | default "nothing")) -}}
{{- end -}}

{{- if and $epp.autoscaling.enabled $leader -}}
{{- fail "inferenceExtension.autoscaling is for replicas that all serve: set inferenceExtension.leaderElection=false with it, or leave it off" -}}
{{- end -}}
{{- if and $epp.autoscaling.enabled (gt (int $epp.autoscaling.minReplicas) (int $epp.autoscaling.maxReplicas)) -}}
{{- fail "inferenceExtension.autoscaling.minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- if and $epp.podDisruptionBudget.enabled $leader -}}
{{- fail "inferenceExtension.podDisruptionBudget would keep nodes from draining: only the leader is ever ready. Leave it off, or set inferenceExtension.leaderElection=false" -}}
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
{{- if and (or $epp.kvEvents.enabled $epp.tokenizer.path) (ne $epp.pluginsConfigFile "default-plugins.yaml") -}}
{{- fail "inferenceExtension.tokenizer and kvEvents go into default-plugins.yaml, which pluginsConfigFile does not name: write token-producer and precise-prefix-cache-producer into your own file" -}}
{{- end -}}
{{- if and (eq .Values.provider.name "gke") (not $isPool) -}}
{{- fail "provider.name=gke is about InferencePools: set it to none where createInferencePool is false" -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (not (has (lower $epp.sidecar.proxyType) (list "" "envoy"))) -}}
{{- fail (printf "inferenceExtension.sidecar.proxyType is %q; this chart knows envoy. For another proxy leave it empty and give name, image and args yourself" $epp.sidecar.proxyType) -}}
{{- end -}}
{{- if and $epp.sidecar.enabled (not $epp.sidecar.proxyType) (not (and $epp.sidecar.name $epp.sidecar.image)) -}}
{{- fail "inferenceExtension.sidecar.enabled needs proxyType=envoy, or a container of your own with name and image" -}}
{{- end -}}

{{- if and (not $isPool) (not (regexMatch "^[^=!,() ]+==?[^=!,() ]+(,[^=!,() ]+==?[^=!,() ]+)*$" $epp.endpointsServer.endpointSelector)) -}}
{{- fail (printf "inferenceExtension.endpointsServer.endpointSelector is %q; write labels and values as app=vllm,role=decode" $epp.endpointsServer.endpointSelector) -}}
{{- end -}}

{{- if $epp.tracing.enabled -}}
{{- fail "inferenceExtension.tracing.enabled: this version exports no traces; leave it false" -}}
{{- end -}}
{{- if $epp.latencyPredictor.enabled -}}
{{- fail "inferenceExtension.latencyPredictor.enabled: there is no such sidecar here, the default policy predicts latency itself; leave it false" -}}
{{- end -}}
{{- if or (ne $epp.metricsDataSource.scheme "http") (ne $epp.metricsDataSource.path "/metrics") -}}
{{- fail "inferenceExtension.metricsDataSource: this version reads metrics from http://POD:PORT/metrics only; leave scheme and path as they are" -}}
{{- end -}}
{{- if ne $pool.modelServerProtocol "http" -}}
{{- fail "inferencePool.modelServerProtocol: this version speaks HTTP to model servers; set it to http" -}}
{{- end -}}
{{- if not (has $pool.parser (list "" "openai-parser" "passthrough-parser")) -}}
{{- fail (printf "inferencePool.parser is %q; this version has openai-parser and passthrough-parser, both always on: leave it empty" $pool.parser) -}}
{{- end -}}
{{- if and $pool.apiVersion (ne $pool.apiVersion "inference.networking.k8s.io/v1") -}}
{{- fail (printf "inferencePool.apiVersion is %q; this version knows inference.networking.k8s.io/v1: upgrade the CRDs (manifests/crds) and set it to that" $pool.apiVersion) -}}
{{- end -}}
{{- end -}}
