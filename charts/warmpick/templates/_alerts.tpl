{{- /* The pickers that alerts look at, as their monitor names them: a ServiceMonitor's job is the Service. */ -}}
{{- define "warmpick.alertSelector" -}}
{{- $gmp := eq (include "warmpick.monitoringProvider" .) "gmp" -}}
{{- $job := printf "job=%q" (ternary .Release.Name (include "warmpick.name" .) $gmp) -}}
{{- if and (include "warmpick.preferred" .) (not $gmp) -}}
{{- /* Each has a Service. */ -}}
{{- $job = printf "job=~%q" (printf "%s(-preferred-[0-9]+|-backup(-[0-9]+)?)?" (include "warmpick.name" .)) -}}
{{- end -}}
{{- .Values.inferenceExtension.monitoring.alerts.selector | default (printf "%s,namespace=%q" $job .Release.Namespace) -}}
{{- end -}}

{{- /* files/alerts.yaml with the values in its rules, without those that are off. */ -}}
{{- define "warmpick.alertGroups" -}}
{{- $alerts := .Values.inferenceExtension.monitoring.alerts -}}
{{- $groups := list -}}
{{- range $group := (.Files.Get "files/alerts.yaml" | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := $group.rules -}}
{{- $said := dict "enabled" true -}}
{{- with $rule.alert -}}
{{- $said = get $alerts.rules . -}}
{{- if not $said -}}
{{- fail (printf "inferenceExtension.monitoring.alerts.rules.%s is null: write {enabled: false}, to omit it. If you upgrade with --reuse-values, use --reset-then-reuse-values instead" .) -}}
{{- end -}}
{{- end -}}
{{- if $said.enabled -}}
{{- $expr := $rule.expr | replace "<selector>" (include "warmpick.alertSelector" $) -}}
{{- range $name, $value := omit $said "enabled" "for" "severity" -}}
{{- /* Of each worker: what a pod takes is theirs together. A limit may leave them less. */ -}}
{{- if eq $name "cores" -}}
{{- $cores := $.Values.inferenceExtension.workers -}}
{{- with (($.Values.inferenceExtension.resources | default dict).limits | default dict).cpu -}}
{{- $cores = minf $cores (ternary (divf (float64 (trimSuffix "m" (toString .))) 1000) (float64 .) (hasSuffix "m" (toString .))) -}}
{{- end -}}
{{- $value = mulf $value $cores -}}
{{- end -}}
{{- $expr = $expr | replace (printf "<%s>" $name) (toString $value) -}}
{{- end -}}
{{- $_ := set $rule "expr" $expr -}}
{{- with $rule.alert -}}
{{- $_ := set $rule "for" $said.for -}}
{{- $_ := set $rule "labels" (dict "severity" $said.severity) -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s#%s" $alerts.runbook (lower .)) -}}
{{- end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $groups = append $groups (dict "name" $group.name "interval" "30s" "rules" $rules) -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}
