{{- define "toolscale.redisEnv" -}}
- name: REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.existingSecret }}
      key: {{ .Values.redis.urlKey }}
{{- end -}}

{{- define "toolscale.qdrantEnv" -}}
- name: QDRANT_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.qdrant.existingSecret }}
      key: {{ .Values.qdrant.urlKey }}
{{- with .Values.qdrant.apiKeyKey }}
- name: QDRANT_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ $.Values.qdrant.existingSecret }}
      key: {{ . }}
{{- end }}
{{- end -}}

{{/* Prometheus sends no token. */}}
{{- define "toolscale.metricsEnv" -}}
{{- if or .Values.monitoring.metricsPublic .Values.monitoring.podMonitor }}
- name: TOOLSCALE_METRICS_PUBLIC
  value: "true"
{{- end }}
{{- end -}}

{{/* The settings of all components, overridden by those of a component. */}}
{{- define "toolscale.settingsEnv" -}}
{{- range $name, $value := merge (dict) (.given.settings | default dict) .root.Values.settings }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* Metrics and readiness, for the kubelet and the peers of `networkPolicy.metricsFrom`. */}}
{{- define "toolscale.metricsPortEnv" -}}
- name: TOOLSCALE_METRICS_HOST
  value: 0.0.0.0
- name: TOOLSCALE_METRICS_PORT
  value: "9464"
{{- end -}}

{{/* Settings of connections to servers. */}}
{{- define "toolscale.serversEnv" -}}
- name: TOOLSCALE_ALLOWED_HOSTS
  value: {{ .Values.allowedHosts | quote }}
{{- if or .Values.config.existingConfigMap .Values.config.existingSecret }}
- name: TOOLSCALE_MCP_CONFIG
  value: /etc/toolscale/config/mcp.json
{{- end }}
{{- if .Values.credentials.existingSecret }}
- name: TOOLSCALE_CREDENTIALS_DIR
  value: /etc/toolscale/credentials
{{- end }}
{{- end -}}

{{/* Directories, since Kubernetes does not update a file mounted by subPath. */}}
{{- define "toolscale.serversVolumes" -}}
{{- with .Values.config }}
{{- if .existingSecret }}
- name: config
  secret:
    secretName: {{ .existingSecret }}
    items: [{ key: {{ .key | quote }}, path: mcp.json }]
{{- else if .existingConfigMap }}
- name: config
  configMap:
    name: {{ .existingConfigMap }}
    items: [{ key: {{ .key | quote }}, path: mcp.json }]
{{- end }}
{{- end }}
{{- with .Values.credentials.existingSecret }}
- name: credentials
  secret:
    secretName: {{ . }}
{{- end }}
{{- end -}}
