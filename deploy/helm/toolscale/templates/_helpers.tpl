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

{{- define "toolscale.service" }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "toolscale.metadata" . | nindent 2 }}
  {{- with .service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  selector:
    {{- include "toolscale.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .service.port }}
      targetPort: http
{{- end -}}

{{/* A pod that is not ready must not block a node's drain. */}}
{{- define "toolscale.disruptionBudget" }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "toolscale.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .given.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "toolscale.selector" . | nindent 6 }}
{{- end -}}
