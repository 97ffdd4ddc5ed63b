{{- /* The files that the picker may be told to read: {name: text}. */ -}}
{{- define "warmpick.configuration" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- if not (hasKey $epp.pluginsCustomConfig "default-plugins.yaml") -}}
default-plugins.yaml: |
  apiVersion: llm-d.ai/v1alpha1
  kind: EndpointPickerConfig
  plugins:
  - type: least-ttft-picker
  {{- with $epp.tokenizer }}
  {{- if .path }}
  - type: token-producer
    parameters:
      tokenizer: {{ .path | quote }}
      modelName: {{ .modelName | quote }}
  {{- end }}
  {{- end }}
  {{- with $epp.kvEvents }}
  {{- if .enabled }}
  - type: precise-prefix-cache-producer
    parameters:
      kvEventsConfig:
        podDiscoveryConfig:
          socketPort: {{ int .port }}
          replaySocketPort: {{ int .replayPort }}
  {{- end }}
  {{- end }}
{{- end }}
{{- range $file, $text := $epp.pluginsCustomConfig }}
{{ $file }}: |
  {{- $text | trim | nindent 2 }}
{{- end }}
{{- end -}}
