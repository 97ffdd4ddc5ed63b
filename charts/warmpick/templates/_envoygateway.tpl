{{- /* What the objects of Envoy Gateway in envoygateway.yaml share. */ -}}

{{- /* The HTTPRoutes that lead to the pool, each with how many rules it has. */ -}}
{{- define "warmpick.envoyGatewayRoutes" -}}
{{- $routes := list -}}
{{- if .Values.experimentalHttpRoute.enabled }}{{ $routes = append $routes (dict "name" .Release.Name "rules" 1) }}{{ end -}}
{{- range .Values.provider.envoyGateway.routes }}{{ $routes = append $routes (dict "name" .name "rules" (.rules | default 1)) }}{{ end -}}
{{- toYaml $routes -}}
{{- end -}}

{{- /*
The EnvoyPatchPolicy is in the namespace of the Gateway that it is about, beside those of other
namespaces; names of releases and namespaces have no dots.
*/ -}}
{{- define "warmpick.envoyGatewayPatchNamespace" -}}
{{- $elsewhere := ternary "" .Values.experimentalHttpRoute.inferenceGatewayNamespace .Values.provider.envoyGateway.mergeGateways -}}
{{- $elsewhere | default .Release.Namespace -}}
{{- end -}}

{{- define "warmpick.envoyGatewayPatchName" -}}
{{- /* Linting knows no namespace. */ -}}
{{- $ns := .Release.Namespace | default "default" -}}
{{- if ne (include "warmpick.envoyGatewayPatchNamespace" .) .Release.Namespace }}{{ $ns }}.{{ end -}}
{{- .Release.Name -}}
{{- end -}}

{{- /* Envoy's own is 1,024 each. */ -}}
{{- define "warmpick.envoyGatewayLimits" -}}
{{- range $limit, $value := .Values.provider.envoyGateway.limits }}
{{ $limit }}: {{ int64 $value }}
{{- end -}}
{{- end -}}

{{- /*
How the certificate of the picker is checked. Its own is checked by nobody, and so is one of a Secret
whose CA is not told; cert-manager writes the CA beside the certificate.
*/ -}}
{{- define "warmpick.envoyGatewayTLS" -}}
{{- $tls := .Values.provider.envoyGateway.tls -}}
{{- $refs := $tls.caCertificateRefs -}}
{{- if and (not $refs) .Values.inferenceExtension.tls.certManager.enabled (not $tls.insecureSkipVerify) -}}
{{- $refs = list (dict "kind" "Secret" "name" (include "warmpick.tlsSecret" .)) -}}
{{- end -}}
{{- if $refs -}}
caCertificateRefs:
{{- range $refs }}
- group: ""
  kind: {{ .kind | default "ConfigMap" }}
  name: {{ .name }}
{{- end }}
sni: {{ $tls.sni | default (printf "%s.%s.svc" (include "warmpick.name" .) .Release.Namespace) }}
{{- else -}}
insecureSkipVerify: true
{{- end -}}
{{- end -}}

{{- /*
From a cluster of `envoy.cluster.dns` to one that goes where a header says. In this order: Envoy
knows no cluster with both a type and a cluster_type, nor ORIGINAL_DST with endpoints.
*/ -}}
{{- define "warmpick.envoyGatewayOperations" -}}
- op: remove
  path: /cluster_type
- op: remove
  path: /load_balancing_policy
- op: remove
  path: /load_assignment
- op: add
  path: /type
  value: ORIGINAL_DST
- op: add
  path: /lb_policy
  value: CLUSTER_PROVIDED
- op: add
  path: /original_dst_lb_config
  value:
    use_http_header: true
    http_header_name: x-gateway-destination-endpoint
{{- end -}}

{{- define "warmpick.envoyGatewayChecks" -}}
{{- $own := .Values.provider.envoyGateway -}}
{{- if $own.failOpen -}}
{{- fail "provider.envoyGateway.failOpen is true, but Envoy Gateway rejects it for bodies in full duplex, because a body that has gone to the picker cannot be sent again: remove it" -}}
{{- end -}}
{{- if and $own.tls.caCertificateRefs $own.tls.insecureSkipVerify -}}
{{- fail "provider.envoyGateway.tls.caCertificateRefs and insecureSkipVerify are both set: keep only one" -}}
{{- end -}}
{{- if and $own.tls.caCertificateRefs (not (include "warmpick.tlsSecret" .)) -}}
{{- fail "provider.envoyGateway.tls.caCertificateRefs requires a certificate signed by a CA: set inferenceExtension.tls.secretName, or remove caCertificateRefs" -}}
{{- end -}}
{{- if and $own.tls.caCertificateRefs (not (include "warmpick.secureServing" .)) -}}
{{- fail "provider.envoyGateway.tls.caCertificateRefs requires TLS, but the flag secure-serving is false: remove one of them" -}}
{{- end -}}
{{- $names := list -}}
{{- range include "warmpick.envoyGatewayRoutes" . | fromYamlArray -}}
{{- if has .name $names -}}
{{- fail (printf "provider.envoyGateway.routes lists %q more than once: list each route once, and leave out the chart's own, which is always included" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
