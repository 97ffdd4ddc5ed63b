{{- /* What values.schema.json cannot say: each failure names the value and the remedy. */ -}}
{{- define "model-server.checks" -}}
{{- $v := .Values -}}
{{- if not $v.model -}}
{{- fail "model is needed: a hub's name such as --set model=Qwen/Qwen3-32B, or a folder from volumes" -}}
{{- end -}}
{{- if and (eq $v.variant "cpu") $v.multiNode.enabled -}}
{{- fail "multiNode.enabled is for variant=gpu: leave it off, or set variant=gpu" -}}
{{- end -}}
{{- if and (eq $v.variant "cpu") $v.engine.blockSize (ne (mod (int $v.engine.blockSize) 32) 0) -}}
{{- fail (printf "engine.blockSize is %d: on a CPU vLLM takes multiples of 32" (int $v.engine.blockSize)) -}}
{{- end -}}
{{- if and $v.strategy $v.multiNode.enabled -}}
{{- fail "strategy is a Deployment's, and multiNode.enabled makes a LeaderWorkerSet: leave one or the other out" -}}
{{- end -}}
{{- if and $v.lora.adapters (not $v.lora.enabled) -}}
{{- fail "lora.adapters are given and lora.enabled is false: set it to true, or leave them out" -}}
{{- end -}}
{{- if and $v.lora.adapters $v.lora.configMap -}}
{{- fail "lora has both adapters and configMap: keep one" -}}
{{- end -}}
{{- $claim := $v.modelCache.persistentVolumeClaim -}}
{{- if and $claim.create $claim.existingClaim -}}
{{- fail "modelCache.persistentVolumeClaim has both create and existingClaim: keep one" -}}
{{- end -}}
{{- if and (include "model-server.claimOfOneNode" .) (or (gt (int $v.replicas) 1) $v.multiNode.enabled) -}}
{{- fail "several pods share one claim: modelCache.persistentVolumeClaim.accessModes must have ReadWriteMany, or leave create off" -}}
{{- end -}}
{{- $ports := list (int $v.port) (int $v.probes.port) -}}
{{- if $v.kvEvents.enabled -}}
{{- $ports = concat $ports (list (int $v.kvEvents.port) (int $v.kvEvents.replayPort)) -}}
{{- end -}}
{{- if ne (len (uniq $ports)) (len $ports) -}}
{{- fail (printf "port, probes.port, kvEvents.port and kvEvents.replayPort must differ: %s" (join ", " $ports)) -}}
{{- end -}}
{{- end -}}
