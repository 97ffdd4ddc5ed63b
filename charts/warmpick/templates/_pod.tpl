{{- /* What the containers of the picker's pod share: who they are, /tmp, and ports. */ -}}

{{- define "warmpick.podSecurityContext" -}}
{{- $context := .Values.inferenceExtension.podSecurityContext | default dict | deepCopy -}}
{{- with .Values.inferenceExtension.recording -}}
{{- if and .enabled .claimName (not (hasKey $context "fsGroup")) -}}
{{- /* A claim's folder is root's. */ -}}
{{- $_ := set $context "fsGroup" 65532 -}}
{{- $_ := set $context "fsGroupChangePolicy" "OnRootMismatch" -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{- /* Whether the values have a volume `tmp` of their own, for whichever container. */ -}}
{{- define "warmpick.hasTmp" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $volumes := $epp.volumes | default list -}}
{{- if include "warmpick.sidecarRuns" . }}{{ $volumes = concat $volumes ($epp.sidecar.volumes | default list) }}{{ end -}}
{{- if $epp.renderer.enabled }}{{ $volumes = concat $volumes ($epp.renderer.volumes | default list) }}{{ end -}}
{{- range $volumes }}{{ if eq .name "tmp" }}true{{ end }}{{ end -}}
{{- end -}}

{{- /* Whether the chart gives the picker a /tmp, as its root file system is read-only. */ -}}
{{- define "warmpick.mountsTmp" -}}
{{- $given := false -}}
{{- range .Values.inferenceExtension.volumeMounts -}}
{{- if eq (.mountPath | trimSuffix "/") "/tmp" }}{{ $given = true }}{{ end -}}
{{- end -}}
{{- if not $given }}true{{ end -}}
{{- end -}}

{{- /*
Whether the renderer runs as its image says, which for vLLM's is root: so with llm-d-router, unless the
values say who the pod runs as.
*/ -}}
{{- define "warmpick.asImage" -}}
{{- $said := dict -}}
{{- with .Values.fromLlmDRouter }}{{ $said = dig "epp" "podSecurityContext" dict .given | default dict }}{{ end -}}
{{- if not (or (hasKey (.Values.inferenceExtension.podSecurityContext | default dict) "runAsUser") (hasKey $said "runAsNonRoot")) }}true{{ end -}}
{{- end -}}

{{- /* What runs before the renderer, as its images say, too. */ -}}
{{- define "warmpick.rendererInit" -}}
{{- $all := list -}}
{{- range .Values.inferenceExtension.renderer.initContainers -}}
{{- $container := deepCopy . -}}
{{- $context := $container.securityContext | default dict -}}
{{- if and (include "warmpick.asImage" $) (not (hasKey $context "runAsNonRoot")) (not (hasKey $context "runAsUser")) -}}
{{- $_ := set $container "securityContext" (set $context "runAsNonRoot" false) -}}
{{- end -}}
{{- $all = append $all $container -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{- /*
For how long a container goes on before it is told to end; nothing: not at all. A pause that is longer
than the grace period, or 0, is refused by the API server. This is of a proxy by itself: Envoy ends at
once on SIGTERM. One beside a picker ends after it.
*/ -}}
{{- define "warmpick.proxyPause" -}}
{{- $grace := int .Values.inferenceExtension.sidecar.terminationGracePeriodSeconds -}}
{{- if gt $grace 0 }}{{ max 1 (sub $grace 5) }}{{ end -}}
{{- end -}}

{{- /*
A pod that is to go is asked on while no other is ready, so that the pause is for the next one to start;
no longer than Services and gateways need to forget the pod where the next one starts only afterwards.
A leader has no pause: told to end, it gives up its lease first, and serves until another one leads.
Streams that a configuration of one's own does not show to the picker until they end have most of the
grace period.
*/ -}}
{{- define "warmpick.pickerPause" -}}
{{- $grace := int .Values.inferenceExtension.terminationGracePeriodSeconds -}}
{{- $recreate := eq (dig "type" "" (.Values.inferenceExtension.strategy | default dict)) "Recreate" -}}
{{- $afterwards := or $recreate (ne (include "warmpick.ordered" .) "") -}}
{{- $own := dig "configMap" "data" "envoy.yaml" "" .Values.inferenceExtension.sidecar -}}
{{- $unseen := and (include "warmpick.proxyBeside" .) $own (not (regexMatch "response_body_mode:\\s*FULL_DUPLEX_STREAMED" $own)) -}}
{{- $leader := include "warmpick.leaderElection" . -}}
{{- $seconds := min (ternary 5 20 $afterwards) (div $grace 4) -}}
{{- if $unseen -}}
{{- $seconds = sub $grace 5 -}}
{{- if or $afterwards $leader }}{{ $seconds = min 20 $seconds }}{{ end -}}
{{- end -}}
{{- if and (gt $grace 0) (or $unseen (not $leader)) }}{{ max 1 $seconds }}{{ end -}}
{{- end -}}

{{- /* Ports of the picker's pod that the values add, as a NetworkPolicy has them. */ -}}
{{- define "warmpick.openedPorts" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $ports := $epp.extraContainerPorts | default list -}}
{{- if include "warmpick.sidecarRuns" . }}{{ $ports = concat $ports ($epp.sidecar.ports | default list) }}{{ end -}}
{{- $opened := list -}}
{{- range $ports }}{{ $opened = append $opened (dict "port" (int .containerPort) "protocol" (.protocol | default "TCP")) }}{{ end -}}
{{- with $opened }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- /*
Ports that are there twice: of the pod, whose containers share an address, and of the Service. Each is
told by where it is said.
*/ -}}
{{- define "warmpick.portChecks" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- $flags := include "warmpick.flags" . | fromYaml -}}
{{- $router := not (not .Values.fromLlmDRouter) -}}
{{- $tree := ternary "router" "inferenceExtension" $router -}}
{{- $picker := ternary "router.epp" "inferenceExtension" $router -}}
{{- $pod := list
      (dict "port" (include "warmpick.grpcPort" .) "of" (printf "%s.flags.grpc-port (9002)" $picker))
      (dict "port" (index $flags "grpc-health-port") "of" (printf "%s.grpcHealthPort" $picker))
      (dict "port" (index $flags "metrics-port" | default 9090) "of" (printf "%s.flags.metrics-port (9090)" $picker)) -}}
{{- if include "warmpick.replicasListen" . -}}
{{- range $number := until (int $epp.workers) -}}
{{- $pod = append $pod (dict "port" (add $epp.exchange.port $number) "of" "inferenceExtension.exchange.port, from which each worker has one") -}}
{{- end -}}
{{- end -}}
{{- if $epp.renderer.enabled -}}
{{- $pod = append $pod (dict "port" ($epp.renderer.port | default 8000) "of" (printf "%s.port" (ternary "router.tokenizer" "inferenceExtension.renderer" $router))) -}}
{{- end -}}
{{- $own := dig "configMap" "data" "envoy.yaml" "" $epp.sidecar -}}
{{- if and (include "warmpick.proxyBeside" .) (not $own) -}}
{{- range list 8081 19000 19001 }}{{ $pod = append $pod (dict "port" . "of" "the proxy") }}{{ end -}}
{{- end -}}
{{- include "warmpick.twice" (dict "ports" $pod "where" "the picker's pod") -}}
{{- $service := list
      (dict "port" $epp.extProcPort "of" (printf "%s.extProcPort" $picker))
      (dict "port" $epp.metricsPort "of" (printf "%s.metricsPort" $tree)) -}}
{{- range include "warmpick.clientPorts" . | fromYamlArray -}}
{{- if and (ne (.protocol | default "TCP") "UDP") (not (and (eq .name "http") (include "warmpick.proxyService" $))) -}}
{{- $service = append $service (dict "port" .port "of" (printf "%s.extraServicePorts (%s)" $tree .name)) -}}
{{- end -}}
{{- end -}}
{{- include "warmpick.twice" (dict "ports" $service "where" "the picker's Service") -}}
{{- end -}}

{{- define "warmpick.twice" -}}
{{- $taken := dict -}}
{{- range .ports -}}
{{- $port := int .port | toString -}}
{{- if hasKey $taken $port -}}
{{- fail (printf "port %s is used twice in %s, by %s and by %s: give one of them another port" $port $.where (get $taken $port) .of) -}}
{{- end -}}
{{- $_ := set $taken $port .of -}}
{{- end -}}
{{- end -}}
