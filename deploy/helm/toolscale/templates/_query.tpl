{{/* Fails with instructions if values contradict each other. */}}
{{- define "toolscale.checkedQuery" -}}
{{- with .Values.query -}}
{{- if not (or .tokens.existingSecret .jwt.issuer .allowUnauthenticated) -}}
{{- fail "query: say how callers are known: query.tokens.existingSecret, or query.jwt.issuer; or query.allowUnauthenticated=true where only trusted clients reach it" -}}
{{- end -}}
{{- if and .jwt.issuer (not (and .jwt.jwks .jwt.publicUrl)) -}}
{{- fail "query.jwt: an issuer needs jwks, its keys, and publicUrl, the audience of its tokens" -}}
{{- end -}}
{{- if and .ingress.enabled .allowUnauthenticated -}}
{{- fail "query.ingress: not together with allowUnauthenticated, since every client could call any tool" -}}
{{- end -}}
{{- if and .allowUnauthenticated (ne .service.type "ClusterIP") -}}
{{- fail "query.service.type: ClusterIP with allowUnauthenticated, since every client outside the cluster could call any tool" -}}
{{- end -}}
{{- range concat $.Values.extraEnv (.extraEnv | default list) -}}
{{- if eq .name "TOOLSCALE_CALL_TIMEOUT_S" -}}
{{- fail "extraEnv: set TOOLSCALE_CALL_TIMEOUT_S in settings or query.settings, since the pod's grace period follows these" -}}
{{- end -}}
{{- end -}}
{{- if .autoscaling.enabled -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail "query.autoscaling: minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" .resources) -}}
{{- fail "query.resources.requests.cpu: autoscaling requires it" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The seconds for the longest call, and 40 for `preStop`, the responses, and a stdio server that is being installed. */}}
{{- define "toolscale.queryGrace" -}}
{{- $settings := merge (dict) .Values.query.settings .Values.settings -}}
{{- add (ceil (float64 (get $settings "TOOLSCALE_CALL_TIMEOUT_S" | default 60))) 40 -}}
{{- end -}}

{{/* The host names of the query service, inside and outside the cluster. */}}
{{- define "toolscale.queryHosts" -}}
{{- $service := printf "%s-query" (include "toolscale.fullname" .) -}}
{{- $hosts := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) -}}
{{- $hosts = append $hosts (printf "%s.%s.svc.cluster.local" $service .Release.Namespace) -}}
{{- if .Values.query.ingress.enabled -}}
{{- $hosts = append $hosts .Values.query.ingress.host -}}
{{- end -}}
{{- concat $hosts .Values.query.hosts | uniq | join "," -}}
{{- end -}}

{{- define "toolscale.callersEnv" -}}
{{- with .Values.query }}
{{- if .tokens.existingSecret }}
- name: TOOLSCALE_TOKENS_FILE
  value: /etc/toolscale/tokens/tokens.toml
{{- end }}
{{- if .jwt.issuer }}
- name: TOOLSCALE_JWT_ISSUER
  value: {{ .jwt.issuer | quote }}
- name: TOOLSCALE_JWT_JWKS
  value: {{ .jwt.jwks | quote }}
{{- end }}
{{- if .jwt.publicUrl }}
- name: TOOLSCALE_PUBLIC_URL
  value: {{ .jwt.publicUrl | quote }}
{{- end }}
{{- if .allowUnauthenticated }}
- name: TOOLSCALE_ALLOW_UNAUTHENTICATED_BIND
  value: "true"
{{- end }}
{{- end }}
{{- end -}}

{{- define "toolscale.queryEnv" -}}
{{ include "toolscale.qdrantEnv" . }}
{{ include "toolscale.serversEnv" . }}
{{ include "toolscale.policyEnv" . }}
- name: TOOLSCALE_HOST
  value: 0.0.0.0
- name: TOOLSCALE_PORT
  value: "8765"
- name: TOOLSCALE_ALLOWED_HTTP_HOSTS
  value: {{ include "toolscale.queryHosts" . | quote }}
{{ include "toolscale.callersEnv" . }}
{{ include "toolscale.metricsEnv" . }}
{{- end -}}

{{- define "toolscale.queryVolumes" -}}
{{ include "toolscale.serversVolumes" . }}
{{ include "toolscale.fileVolume" (dict "name" "tokens" "file" "tokens.toml" "from" .Values.query.tokens) }}
{{ include "toolscale.policyVolume" . }}
{{- end -}}
