{{- /* The container beside the picker: Envoy as this chart sets it up, or one of the user's. */ -}}
{{- define "warmpick.sidecar" -}}
{{- $sidecar := .Values.inferenceExtension.sidecar -}}
{{- $container := dict
      "name" ($sidecar.name | default "envoy-sidecar")
      "image" ($sidecar.image | default "docker.io/envoyproxy/envoy:distroless-v1.40.0")
      "imagePullPolicy" ($sidecar.imagePullPolicy | default "IfNotPresent")
      "securityContext" .Values.inferenceExtension.securityContext -}}
{{- if include "warmpick.envoy" . -}}
{{- $container = merge (include "warmpick.envoyContainer" . | fromYaml) $container -}}
{{- end -}}
{{- range $field := list "command" "args" "env" "ports" "resources" "livenessProbe" "readinessProbe" "startupProbe" "securityContext" "volumeMounts" -}}
{{- with index $sidecar $field -}}
{{- $_ := set $container $field (ternary (list .) . (and (eq $field "command") (kindIs "string" .))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $container -}}
{{- end -}}

{{- define "warmpick.envoyContainer" -}}
# The image's entry point is a shell script, and there is no shell to count on.
command: [envoy]
args: [--config-path, /etc/envoy/envoy.yaml, --disable-hot-restart, --log-level, warning]
{{- /* As llm-d-router's charts call them, whose users' Services, monitors and arguments name them. */}}
ports:
- name: {{ ternary "http-8081" "http" (not (not .Values.fromLlmDRouter)) }}
  containerPort: 8081
- name: {{ ternary "metrics-19001" "envoy-ready" (not (not .Values.fromLlmDRouter)) }}
  containerPort: 19001
{{- if .Values.fromLlmDRouter }}
env:
- name: NS_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
readinessProbe:
  httpGet:
    path: /ready
    port: 19001
  periodSeconds: 2
{{- if include "warmpick.proxyBeside" . }}
# A sidecar container: it is told to end when the picker has ended, whose drain waits for all streams.
restartPolicy: Always
{{- else }}
{{- with include "warmpick.proxyPause" . }}
lifecycle:
  preStop:
    # Envoy ends at once on SIGTERM: first the Service forgets the pod, and streams go on.
    sleep:
      seconds: {{ . }}
{{- end }}
{{- end }}
volumeMounts:
- name: config
  mountPath: /etc/envoy
  readOnly: true
{{- end -}}

{{- /* Its volumes; Envoy's configuration, unless a volume of that name is given. */ -}}
{{- define "warmpick.sidecarVolumes" -}}
{{- $volumes := .Values.inferenceExtension.sidecar.volumes | default list -}}
{{- $named := false -}}
{{- range $volumes }}{{ if eq .name "config" }}{{ $named = true }}{{ end }}{{ end -}}
{{- if and (include "warmpick.envoy" .) (not $named) }}
- name: config
  configMap:
    name: {{ include "warmpick.envoyConfigMap" . | quote }}
{{- end }}
{{- with $volumes }}
{{ tpl (toYaml .) $ }}
{{- end }}
{{- end -}}

{{- /* Envoy's configuration: of the values, where they have one. */ -}}
{{- define "warmpick.envoyConfig" -}}
{{- $given := dig "configMap" "data" "envoy.yaml" "" .Values.inferenceExtension.sidecar -}}
{{- tpl (default (.Files.Get "files/envoy.yaml") $given) . -}}
{{- end -}}

{{- /*
vLLM's renderer, which makes of a request the engine's tokens. llm-d-router calls it the tokenizer.
*/ -}}
{{- define "warmpick.renderer" -}}
{{- $renderer := .Values.inferenceExtension.renderer -}}
{{- $port := int ($renderer.port | default 8000) -}}
{{- $image := $renderer.image | default dict -}}
name: vllm-render
image: {{ printf "%s/%s:%s" ($image.registry | default "docker.io") ($image.repository | default "vllm/vllm-openai-cpu") ($image.tag | default "v0.19.1") }}
imagePullPolicy: {{ $image.pullPolicy | default "IfNotPresent" }}
command: {{ $renderer.command | default (ternary (list "vllm-rs" "render") (list "vllm" "launch" "render") (eq $renderer.flavor "rust")) | toJson }}
{{- $args := $renderer.args | default (list $renderer.modelName (printf "--port=%d" $port)) }}
args: {{ concat $args ($renderer.extraArgs | default list) | toJson }}
ports:
- name: render-http
  containerPort: {{ $port }}
readinessProbe:
  {{- if $renderer.readinessProbe }}
  {{- toYaml $renderer.readinessProbe | nindent 2 }}
  {{- else }}
  httpGet:
    path: /health
    port: render-http
  initialDelaySeconds: 30
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 60
  {{- end }}
{{- $env := $renderer.env | default list -}}
{{- $home := dict "name" "HF_HOME" "value" "/cache/huggingface" -}}
{{- range $env }}{{ if eq .name "HF_HOME" }}{{ $home = . }}{{ end }}{{ end }}
env:
- {{ toJson $home }}
{{- range $env }}
{{- if ne .name "HF_HOME" }}
- {{ toJson . }}
{{- end }}
{{- end }}
resources:
  {{- $renderer.resources | default (dict "requests" (dict "cpu" "4" "memory" "8Gi")) | toYaml | nindent 2 }}
{{- $context := dict "allowPrivilegeEscalation" false "capabilities" (dict "drop" (list "ALL")) -}}
{{- if include "warmpick.asImage" . -}}
{{- /* Root that may read and write the files of a cache, whoever made them. */ -}}
{{- $_ := set $context "runAsNonRoot" false -}}
{{- $_ := set $context.capabilities "add" (list "DAC_OVERRIDE") -}}
{{- end }}
securityContext: {{ $renderer.securityContext | default $context | toJson }}
volumeMounts:
- name: model-cache
  mountPath: /cache/huggingface
{{- with $renderer.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The HorizontalPodAutoscaler of a Deployment. */ -}}
{{- define "warmpick.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "warmpick.named" (list .root .name) | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ .name }}
  minReplicas: {{ int .values.minReplicas }}
  maxReplicas: {{ int .values.maxReplicas }}
  metrics:
  {{- if .values.metrics }}
  {{- toYaml .values.metrics | nindent 2 }}
  {{- else }}
  {{- range $resource, $percent := dict "cpu" .values.targetCPUUtilizationPercentage "memory" .values.targetMemoryUtilizationPercentage }}
  {{- if $percent }}
  - type: Resource
    resource:
      name: {{ $resource }}
      target:
        type: Utilization
        averageUtilization: {{ int $percent }}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with .values.behavior | default .behavior }}
  behavior:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "warmpick.image" -}}
{{- $image := .Values.inferenceExtension.image -}}
{{- printf "%s/%s:%s" $image.registry $image.repository ($image.tag | default .Chart.AppVersion) | trimPrefix "/" -}}
{{- end -}}
