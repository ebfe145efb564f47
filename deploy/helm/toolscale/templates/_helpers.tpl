{{- define "toolscale.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* No upgrade may change these labels, since a Deployment's selector is immutable. */}}
{{- define "toolscale.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "toolscale.labels" -}}
{{ include "toolscale.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* Name and labels of an object of a component. */}}
{{- define "toolscale.metadata" -}}
name: {{ include "toolscale.fullname" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "toolscale.labels" . | nindent 2 }}
{{- end -}}

{{/* The name of a cluster-wide object, with the namespace: a release's name is unique only in its namespace. */}}
{{- define "toolscale.clusterMetadata" -}}
name: {{ .root.Release.Namespace }}-{{ include "toolscale.fullname" .root }}-{{ .component }}
labels:
  {{- include "toolscale.labels" . | nindent 2 }}
{{- end -}}

{{- define "toolscale.podMetadata" -}}
labels:
  {{- include "toolscale.selector" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The specification of all pods; `account` is the service account of a pod that uses the API server. */}}
{{- define "toolscale.pod" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
serviceAccountName: {{ .account | default (include "toolscale.fullname" .root) }}
automountServiceAccountToken: {{ not (empty .account) }}
# else the Service gives every pod a variable TOOLSCALE_EVENTS_PORT with a URL
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "toolscale.selector" . | nindent 8 }}
{{- with .given.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .given.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The specification of all containers. */}}
{{- define "toolscale.container" -}}
image: {{ include "toolscale.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources:
  {{- toYaml .given.resources | nindent 2 }}
{{- end -}}

{{- define "toolscale.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A failed liveness probe restarts a pod; a failed readiness probe only delays clients and roll-outs. */}}
{{- define "toolscale.httpProbes" -}}
startupProbe:
  httpGet:
    path: {{ .alive }}
    port: {{ .port }}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: {{ .alive }}
    port: {{ .port }}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet:
    path: {{ .ready }}
    port: {{ .port }}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: 3
{{- end -}}
