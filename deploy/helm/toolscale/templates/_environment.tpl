{{/* The variables of a container; a later variable replaces an earlier one of the same name. */}}
{{- define "toolscale.env" -}}
{{- $env := list -}}
{{- $names := dict -}}
{{- $extra := concat .root.Values.extraEnv (.given.extraEnv | default list) -}}
{{- range concat (include "toolscale.ownEnv" . | fromYamlArray) $extra | reverse -}}
{{- $env = ternary $env (prepend $env .) (hasKey $names .name) -}}
{{- $_ := set $names .name true -}}
{{- end -}}
{{- toYaml $env -}}
{{- end -}}

{{- define "toolscale.ownEnv" -}}
{{ include "toolscale.redisEnv" .root }}
{{ .env | default "" }}
{{ include "toolscale.caEnv" .root }}
{{ include "toolscale.otelEnv" .root }}
{{ if not .port }}{{ include "toolscale.metricsPortEnv" . }}{{ end }}
{{ include "toolscale.settingsEnv" . }}
{{- end -}}

{{/* Of OpenSSL and httpx, and of Requests, which sends traces. */}}
{{- define "toolscale.caEnv" -}}
{{- if or .Values.caBundle.existingConfigMap .Values.caBundle.existingSecret }}
{{- range list "SSL_CERT_FILE" "REQUESTS_CA_BUNDLE" }}
- name: {{ . }}
  value: /etc/toolscale/ca/ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{- define "toolscale.otelEnv" -}}
{{- with .Values.otelHeaders }}
{{- if .existingSecret }}
{{ include "toolscale.secretEnv" (dict "name" "OTEL_EXPORTER_OTLP_HEADERS" "secret" .existingSecret "key" .key) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "toolscale.secretEnv" -}}
- {{ dict "name" .name "valueFrom" (dict "secretKeyRef" (dict "name" .secret "key" .key)) | toJson }}
{{- end -}}

{{- define "toolscale.redisEnv" -}}
{{- with .Values.redis }}
{{- include "toolscale.secretEnv" (dict "name" "REDIS_URL" "secret" .existingSecret "key" .urlKey) }}
{{- end }}
{{- end -}}

{{- define "toolscale.qdrantEnv" -}}
{{- with .Values.qdrant }}
{{- include "toolscale.secretEnv" (dict "name" "QDRANT_URL" "secret" .existingSecret "key" .urlKey) }}
{{- if .apiKeyKey }}
{{ include "toolscale.secretEnv" (dict "name" "QDRANT_API_KEY" "secret" .existingSecret "key" .apiKeyKey) }}
{{- end }}
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

{{/* The service that `kubectl exec ... -- toolscale` asks, and its token. */}}
{{- define "toolscale.commandsEnv" -}}
- name: TOOLSCALE_URL
  value: http://{{ include "toolscale.fullname" . }}-query:{{ .Values.query.service.port }}
{{- with .Values.query.commandToken }}
{{- if .existingSecret }}
{{ include "toolscale.secretEnv" (dict "name" "TOOLSCALE_TOKEN" "secret" .existingSecret "key" .key) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings of connections to servers. */}}
{{- define "toolscale.serversEnv" -}}
{{ include "toolscale.commandsEnv" . }}
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
{{- with .Values.signIns }}
{{- if .existingSecret }}
{{ include "toolscale.secretEnv" (dict "name" "TOOLSCALE_SECRET_KEY" "secret" .existingSecret "key" .key) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "toolscale.serversVolumes" -}}
{{ include "toolscale.fileVolume" (dict "name" "config" "file" "mcp.json" "from" .Values.config) }}
{{- with .Values.credentials.existingSecret }}
- name: credentials
  secret:
    secretName: {{ . }}
{{- end }}
{{- end -}}

{{/* The policy file: the query service reads its rules on calls, and workers too those on servers. */}}
{{- define "toolscale.policyEnv" -}}
{{- if .Values.query.policy.existingSecret }}
- name: TOOLSCALE_POLICY_FILE
  value: /etc/toolscale/policy/policy.toml
{{- end }}
{{- end -}}

{{- define "toolscale.policyVolume" -}}
{{ include "toolscale.fileVolume" (dict "name" "policy" "file" "policy.toml" "from" .Values.query.policy) }}
{{- end -}}

{{/* A key of a Secret or ConfigMap, in a directory, since Kubernetes does not update a file mounted by subPath. */}}
{{- define "toolscale.fileVolume" -}}
{{- $items := list (dict "key" .from.key "path" .file) }}
{{- with .from.existingSecret }}
- {{ dict "name" $.name "secret" (dict "secretName" . "items" $items) | toJson }}
{{- end }}
{{- with .from.existingConfigMap }}
- {{ dict "name" $.name "configMap" (dict "name" . "items" $items) | toJson }}
{{- end }}
{{- end -}}
