{{- /* The launcher's file. What is null is left to it, or to vLLM. */ -}}
{{- define "model-server.configuration" -}}
{{- $v := .Values -}}
{{- $file := dict
      "model" $v.model
      "servedModelName" (include "model-server.served" .)
      "device" $v.variant
      "host" $v.host
      "port" (int $v.port)
      "probePort" (int $v.probes.port)
      "startSeconds" (int $v.probes.startSeconds)
      "drainSeconds" (int $v.drain.seconds) -}}
{{- range $key := list "blockSize" "maxModelLen" "maxNumSeqs" "maxNumBatchedTokens" -}}
{{- with index $v.engine $key }}{{ $_ := set $file $key (int .) }}{{ end -}}
{{- end -}}
{{- with $v.engine.kvCacheBytes }}{{ $_ := set $file "kvCacheBytes" . }}{{ end -}}
{{- if eq $v.variant "cpu" -}}
{{- $_ := set $file "threads" (int $v.engine.threads) -}}
{{- else -}}
{{- $_ := set $file "tensorParallelSize" (int $v.gpu.count) -}}
{{- end -}}
{{- if $v.kvEvents.enabled -}}
{{- $_ := set $file "kvEventsPort" (int $v.kvEvents.port) -}}
{{- $_ := set $file "kvReplayPort" (int $v.kvEvents.replayPort) -}}
{{- end -}}
{{- if $v.lora.enabled -}}
{{- $_ := set $file "loraFile" "/adapters/adapters.yaml" -}}
{{- $_ := set $file "maxLoras" (int $v.lora.maxLoras) -}}
{{- $_ := set $file "maxLoraRank" (int $v.lora.maxRank) -}}
{{- end -}}
{{- with $v.engine.args }}{{ $_ := set $file "extra" . }}{{ end -}}
{{- toYaml $file -}}
{{- end -}}
