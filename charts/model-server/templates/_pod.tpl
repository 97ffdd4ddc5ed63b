{{- /* Arguments of the launcher; behind -- those of `vllm serve`. */ -}}
{{- define "model-server.arguments" -}}
{{- $v := .Values -}}
- {{ $v.model | quote }}
- {{ printf "--served-model-name=%s" (include "model-server.served" .) | quote }}
- {{ printf "--host=%s" $v.host | quote }}
- --port={{ int $v.port }}
- --device={{ $v.variant }}
- --drain-seconds={{ int $v.drain.seconds }}
- --start-seconds={{ int $v.probes.startSeconds }}
{{- range $flag, $value := dict "block-size" $v.engine.blockSize "max-model-len" $v.engine.maxModelLen "max-num-seqs" $v.engine.maxNumSeqs "max-num-batched-tokens" $v.engine.maxNumBatchedTokens }}
{{- with $value }}
- --{{ $flag }}={{ int . }}
{{- end }}
{{- end }}
{{- with $v.engine.kvCacheBytes }}
- {{ printf "--kv-cache-bytes=%s" . | quote }}
{{- end }}
{{- if eq $v.variant "cpu" }}
- --threads={{ int $v.engine.threads }}
{{- end }}
{{- if $v.kvEvents.enabled }}
- --kv-events-port={{ int $v.kvEvents.port }}
- --kv-replay-port={{ int $v.kvEvents.replayPort }}
- --pod-name=$(POD_IP):{{ int $v.port }}
{{- end }}
{{- $more := include "model-server.engineArguments" . | fromYamlArray }}
{{- with $more }}
- --
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "model-server.engineArguments" -}}
{{- $v := .Values -}}
{{- if eq $v.variant "gpu" }}
- --tensor-parallel-size={{ int $v.gpu.count }}
{{- end }}
{{- if $v.multiNode.enabled }}
- --pipeline-parallel-size={{ int $v.multiNode.size }}
- --nnodes={{ int $v.multiNode.size }}
- --node-rank=$(LWS_WORKER_INDEX)
- --master-addr=$(LWS_LEADER_ADDRESS)
{{- end }}
{{- if $v.lora.enabled }}
- --enable-lora
- --max-loras={{ int $v.lora.maxLoras }}
- --max-lora-rank={{ int $v.lora.maxRank }}
{{- with $v.lora.adapters }}
- --lora-modules
{{- range . }}
- {{ printf "%s=%s" .name .path | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- range $v.engine.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* A pod; `serves` is whether it answers requests, or works for one that does. */ -}}
{{- define "model-server.pod" -}}
{{- $v := .root.Values -}}
metadata:
  labels:
    {{- if .serves }}
    {{- include "model-server.poolLabels" .root | nindent 4 }}
    llm-d.ai/engine-type: vllm
    {{- end }}
    {{- include "model-server.selectorLabels" .root | nindent 4 }}
  {{- with $v.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # A Service named vllm would set VLLM_PORT, which vLLM reads as its own.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (int $v.drain.preStopSeconds) (int $v.drain.seconds) 15 }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $v.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $v.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
  - name: vllm
    image: {{ include "model-server.image" .root | quote }}
    imagePullPolicy: {{ $v.image.pullPolicy }}
    {{- if .serves }}
    command: [python, -m, model_server.launch]
    args:
      {{- include "model-server.arguments" .root | trim | nindent 4 }}
    ports:
    - name: http
      containerPort: {{ int $v.port }}
    {{- if $v.kvEvents.enabled }}
    - name: kv-events
      containerPort: {{ int $v.kvEvents.port }}
    - name: kv-replay
      containerPort: {{ int $v.kvEvents.replayPort }}
    {{- end }}
    startupProbe:
      httpGet: {path: /health, port: http}
      periodSeconds: 2
      timeoutSeconds: 2
      failureThreshold: {{ div (add (int $v.probes.startSeconds) 1) 2 }}
    readinessProbe:
      httpGet: {path: /health, port: http}
      periodSeconds: 2
      timeoutSeconds: 2
      failureThreshold: 2
    livenessProbe:
      httpGet: {path: /health, port: http}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: {{ int $v.probes.livenessFailures }}
    lifecycle:
      preStop:
        sleep:
          seconds: {{ int $v.drain.preStopSeconds }}
    {{- else }}
    command: [vllm, serve]
    args:
    - {{ $v.model | quote }}
    - --headless
      {{- include "model-server.engineArguments" .root | trim | nindent 4 }}
    {{- end }}
    env:
    - name: POD_IP
      valueFrom:
        fieldRef:
          fieldPath: status.podIP
    # The root file system is read-only: whatever is downloaded or compiled goes to /cache.
    - {name: HOME, value: /tmp}
    - {name: USER, value: vllm}
    - {name: XDG_CACHE_HOME, value: /cache}
    - {name: HF_HOME, value: /cache/huggingface}
    - {name: VLLM_CACHE_ROOT, value: /cache/vllm}
    - {name: TORCHINDUCTOR_CACHE_DIR, value: /cache/torchinductor}
    - {name: TRITON_CACHE_DIR, value: /cache/triton}
    {{- with $v.huggingFaceToken }}
    {{- if .secretName }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ .secretName }}
          key: {{ .key }}
    {{- end }}
    {{- end }}
    {{- with $v.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    resources:
      {{- include "model-server.resources" .root | nindent 6 }}
    {{- with $v.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
    - {name: cache, mountPath: /cache}
    - {name: shared-memory, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
    {{- with $v.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
  - name: cache
    {{- if include "model-server.claim" .root }}
    persistentVolumeClaim:
      claimName: {{ include "model-server.claim" .root }}
    {{- else }}
    emptyDir:
      sizeLimit: {{ $v.modelCache.size }}
    {{- end }}
  - name: shared-memory
    emptyDir:
      medium: Memory
      sizeLimit: {{ $v.sharedMemory.size }}
  - name: tmp
    emptyDir: {}
  {{- with $v.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $v.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* Resources as given, and the GPUs. */ -}}
{{- define "model-server.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if eq .Values.variant "gpu" -}}
{{- $limits := get $resources "limits" | default dict -}}
{{- $_ := set $limits .Values.gpu.resource (int .Values.gpu.count) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
