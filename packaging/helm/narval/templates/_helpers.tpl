{{- define "narval.selector" -}}
app.kubernetes.io/name: narval
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "narval.labels" -}}
{{ include "narval.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "narval.metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "narval.labels" . | nindent 2 }}
{{- end }}
