{{- /* The name of the webhook configuration, whose CA the operator writes. */ -}}
{{- define "nstance-operator.webhook" -}}
nstance-operator{{ with .Values.nameSuffix }}-{{ . }}{{ end }}
{{- end }}
