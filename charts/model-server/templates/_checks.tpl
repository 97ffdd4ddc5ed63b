{{- /* What values.schema.json cannot say: each failure names the value and the remedy. */ -}}
{{- define "model-server.checks" -}}
{{- $v := .Values -}}
{{- range $path := list
      "image.registry" "image.repository" "variant" "replicas" "port" "engine.threads" "gpu.count"
      "multiNode.size" "networkPolicy.pickers" "kvEvents.port" "kvEvents.replayPort"
      "lora.maxLoras" "lora.maxRank" "huggingFaceToken.key" "modelCache.size" "sharedMemory.size"
      "probes.port" "probes.startSeconds" "probes.livenessFailures"
      "podDisruptionBudget.maxUnavailable" "monitoring.interval" -}}
{{- $value := $v -}}
{{- range splitList "." $path }}{{ $value = index $value . }}{{ end -}}
{{- if kindIs "invalid" $value -}}
{{- fail (printf "%s is null: leave it out, for the chart's default, or give it a value" $path) -}}
{{- end -}}
{{- end -}}
{{- range $v.engine.args -}}
{{- $flag := regexFind "^--[^=]*" . | replace "_" "-" -}}
{{- if has $flag (list "--host" "--port" "--shutdown-timeout" "--nnodes" "--node-rank" "--uds") -}}
{{- fail (printf "engine.args has %s, which the launcher sets itself: use host, port, drain.seconds or multiNode instead" $flag) -}}
{{- end -}}
{{- end -}}
{{- if not $v.model -}}
{{- fail "model is required: set it to a model's name on a hub, such as --set model=Qwen/Qwen3-32B, or to a folder from volumes" -}}
{{- end -}}
{{- if and (eq $v.variant "cpu") $v.multiNode.enabled -}}
{{- fail "multiNode.enabled requires variant=gpu: set variant=gpu, or multiNode.enabled=false" -}}
{{- end -}}
{{- if and (eq $v.variant "cpu") $v.engine.blockSize (ne (mod (int $v.engine.blockSize) 32) 0) -}}
{{- fail (printf "engine.blockSize is %d, but on a CPU it must be a multiple of 32" (int $v.engine.blockSize)) -}}
{{- end -}}
{{- if and $v.strategy $v.multiNode.enabled -}}
{{- fail "strategy applies only to a Deployment, but multiNode.enabled makes a LeaderWorkerSet: remove strategy, or set multiNode.enabled=false" -}}
{{- end -}}
{{- if and $v.lora.adapters (not $v.lora.enabled) -}}
{{- fail "lora.adapters is set, but lora.enabled is false: set lora.enabled=true, or remove lora.adapters" -}}
{{- end -}}
{{- if and $v.lora.adapters $v.lora.configMap -}}
{{- fail "lora.adapters and lora.configMap are both set: keep only one" -}}
{{- end -}}
{{- $claim := $v.modelCache.persistentVolumeClaim -}}
{{- if and $claim.create $claim.existingClaim -}}
{{- fail "modelCache.persistentVolumeClaim.create and existingClaim are both set: keep only one" -}}
{{- end -}}
{{- if and (include "model-server.claimOfOneNode" .) (or (gt (int $v.replicas) 1) $v.multiNode.enabled) -}}
{{- fail "several pods share one volume claim: add ReadWriteMany to modelCache.persistentVolumeClaim.accessModes, or set modelCache.persistentVolumeClaim.create=false" -}}
{{- end -}}
{{- $names := "port and probes.port" -}}
{{- $ports := list (int $v.port) (int $v.probes.port) -}}
{{- if $v.kvEvents.enabled -}}
{{- $names = "port, probes.port, kvEvents.port and kvEvents.replayPort" -}}
{{- $ports = concat $ports (list (int $v.kvEvents.port) (int $v.kvEvents.replayPort)) -}}
{{- end -}}
{{- if ne (len (uniq $ports)) (len $ports) -}}
{{- fail (printf "%s must differ, but are %s" $names (join ", " $ports)) -}}
{{- end -}}
{{- end -}}
