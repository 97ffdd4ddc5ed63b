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
ports:
- name: http
  containerPort: 8081
- name: envoy-ready
  containerPort: 19001
readinessProbe:
  httpGet:
    path: /ready
    port: 19001
  periodSeconds: 2
lifecycle:
  preStop:
    # Envoy ends at once on SIGTERM: first the Service forgets the pod, and streams go on.
    sleep:
      seconds: 15
volumeMounts:
- name: envoy
  mountPath: /etc/envoy
  readOnly: true
{{- end -}}

{{- define "warmpick.image" -}}
{{- $image := .Values.inferenceExtension.image -}}
{{- printf "%s/%s:%s" $image.registry $image.repository ($image.tag | default .Chart.AppVersion) | trimPrefix "/" -}}
{{- end -}}
