{{- /*
A pod; `serves` is whether it answers requests, or works for one that does. The launcher knows that
itself, of several nodes from what the LeaderWorkerSet tells it.
*/ -}}
{{- define "model-server.pod" -}}
{{- $v := .root.Values -}}
metadata:
  labels:
    {{- $labels := include "model-server.selectorLabels" .root | fromYaml }}
    {{- if .serves }}
    {{- $labels = merge $labels (include "model-server.poolLabels" .root | fromYaml) (dict "llm-d.ai/engine-type" "vllm") }}
    {{- end }}
    {{- toYaml $labels | nindent 4 }}
  annotations:
    {{- $sum := dict "checksum/config" (include "model-server.configuration" .root | sha256sum) }}
    {{- merge $sum ($v.podAnnotations | default dict) | toYaml | nindent 4 }}
spec:
  automountServiceAccountToken: false
  # A Service named vllm would set VLLM_PORT, which vLLM reads as its own.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (int $v.drain.preStopSeconds) (int $v.drain.seconds) 15 }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.serviceAccountName }}
  serviceAccountName: {{ . | quote }}
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $v.runtimeClassName }}
  runtimeClassName: {{ . | quote }}
  {{- end }}
  {{- with $v.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
  - name: vllm
    image: {{ include "model-server.image" .root | quote }}
    imagePullPolicy: {{ $v.image.pullPolicy }}
    command: [python, -m, model_server.launch]
    args: [--config=/config/server.yaml]
    ports:
    - name: http
      containerPort: {{ int $v.port }}
    - name: probes
      containerPort: {{ int $v.probes.port }}
    {{- if $v.kvEvents.enabled }}
    - name: kv-events
      containerPort: {{ int $v.kvEvents.port }}
    - name: kv-replay
      containerPort: {{ int $v.kvEvents.replayPort }}
    {{- end }}
    # Of the launcher: vLLM's own /health says 200 also while it refuses requests.
    startupProbe:
      httpGet: {path: /ready, port: probes}
      periodSeconds: 2
      timeoutSeconds: 2
      failureThreshold: {{ div (add (int $v.probes.startSeconds) 11) 2 }}
    readinessProbe:
      httpGet: {path: /ready, port: probes}
      periodSeconds: 2
      timeoutSeconds: 5
      failureThreshold: 2
    livenessProbe:
      httpGet: {path: /live, port: probes}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: {{ int $v.probes.livenessFailures }}
    {{- if gt (int $v.drain.preStopSeconds) 0 }}
    lifecycle:
      preStop:
        # Requests that were picked before the pod was known to go still come.
        sleep:
          seconds: {{ int $v.drain.preStopSeconds }}
    {{- end }}
    env:
    {{- include "model-server.env" .root | trim | nindent 4 }}
    resources:
      {{- include "model-server.resources" .root | nindent 6 }}
    {{- with $v.securityContext }}
    securityContext:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
    - {name: config, mountPath: /config, readOnly: true}
    {{- if $v.lora.enabled }}
    - {name: adapters, mountPath: /adapters, readOnly: true}
    {{- end }}
    - {name: cache, mountPath: /cache}
    - {name: shared-memory, mountPath: /dev/shm}
    - {name: tmp, mountPath: /tmp}
    {{- with $v.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
  - name: config
    configMap:
      name: {{ include "model-server.name" .root | quote }}
  {{- if $v.lora.enabled }}
  - name: adapters
    configMap:
      name: {{ include "model-server.adapters" .root | quote }}
  {{- end }}
  - name: cache
    {{- if include "model-server.claim" .root }}
    persistentVolumeClaim:
      claimName: {{ include "model-server.claim" .root | quote }}
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
{{- $resources := deepCopy (.Values.resources | default dict) -}}
{{- if eq .Values.variant "gpu" -}}
{{- $limits := get $resources "limits" | default dict -}}
{{- $_ := set $limits .Values.gpu.resource (int .Values.gpu.count) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* Variables. One of the values stands in place of the chart's: a name is there once. */ -}}
{{- define "model-server.env" -}}
{{- $given := dict -}}
{{- range .Values.env }}{{ $_ := set $given (.name | default "") . }}{{ end -}}
{{- $own := dict -}}
{{- range include "model-server.ownEnv" . | fromYamlArray -}}
{{- $_ := set $own .name . }}
{{ get $given .name | default . | list | toYaml }}
{{- end -}}
{{- range .Values.env -}}
{{- if not (hasKey $own (.name | default "")) }}
{{ list . | toYaml }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "model-server.ownEnv" -}}
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
{{- with .Values.huggingFaceToken }}
{{- if .secretName }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .secretName | quote }}
      key: {{ .key | quote }}
{{- end }}
{{- end }}
{{- end -}}
