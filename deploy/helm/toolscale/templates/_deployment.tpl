{{/*
The Deployment of a component. Required: `component`, `given` (its values), and `command`.
Optional: `container` (a name), `env` and `volumes` (YAML lists), `scaled` (an autoscaler sets the replicas), `strategy`,
`graceSeconds`, `account` (of a pod that uses the API server), `port`, `alive` and `ready` (paths of the probes), and
`drains` (clients connect through a Service). A volume is mounted at /etc/toolscale/NAME.
*/}}
{{- define "toolscale.deployment" }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "toolscale.metadata" . | nindent 2 }}
spec:
  {{- if not .scaled }}
  replicas: {{ dig "replicas" 1 .given }}
  {{- end }}
  {{- with .strategy }}
  strategy:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "toolscale.selector" . | nindent 6 }}
  template:
    metadata:
      {{- include "toolscale.podMetadata" . | nindent 6 }}
    spec:
      {{- include "toolscale.pod" . | nindent 6 }}
{{- end -}}

{{- define "toolscale.podMetadata" -}}
labels:
  {{- include "toolscale.selector" . | nindent 2 }}
  {{- with merge (dict) (.given.podLabels | default dict) .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.given.podAnnotations | default dict) .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "toolscale.pod" -}}
{{- $values := .root.Values -}}
{{- $ca := include "toolscale.fileVolume" (dict "name" "ca" "file" "ca.crt" "from" $values.caBundle) | fromYamlArray -}}
{{- $volumes := concat (.volumes | default "" | fromYamlArray) $ca -}}
{{- $extraVolumes := concat $values.extraVolumes (.given.extraVolumes | default list) -}}
{{- $extraMounts := concat $values.extraVolumeMounts (.given.extraVolumeMounts | default list) -}}
{{- with (.given.image | default dict).pullSecrets | default $values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
serviceAccountName: {{ .account | default (include "toolscale.fullname" .root) }}
automountServiceAccountToken: {{ not (empty .account) }}
# else the Service gives every pod a variable TOOLSCALE_EVENTS_PORT with a URL
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .graceSeconds | default 10 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- range $key := list "affinity" "nodeSelector" "priorityClassName" "tolerations" }}
{{- with get $.given $key | default (get $values $key) }}
{{ dict $key . | toYaml }}
{{- end }}
{{- end }}
{{- with .given.topologySpreadConstraints | default $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ merge (dict) . (dict "labelSelector" (dict "matchLabels" (include "toolscale.selector" $ | fromYaml))) | toJson }}
  {{- end }}
{{- end }}
containers:
  - name: {{ .container | default .component }}
    {{- include "toolscale.image" . | nindent 4 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
    resources:
      {{- toYaml .given.resources | nindent 6 }}
    command:
      {{- toYaml .command | nindent 6 }}
    {{- with .args }}
    args:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    env:
      {{- include "toolscale.env" . | nindent 6 }}
    {{- with concat $values.extraEnvFrom (.given.extraEnvFrom | default list) }}
    envFrom:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    ports:
      - {{ .port | default (dict "name" "metrics" "containerPort" 9464) | toJson }}
    {{- include "toolscale.probes" . | nindent 4 }}
    {{- if .drains }}
    lifecycle:
      # requests arrive until every node has removed this pod's endpoint
      preStop:
        exec:
          # not `sleep`: a stdio server could read the environment of every program except the image's unreadable python
          command: [python, -ISc, "import time; time.sleep(5)"]
    {{- end }}
    volumeMounts:
      - { name: tmp, mountPath: /tmp }
      {{- range $volumes }}
      - { name: {{ .name }}, mountPath: /etc/toolscale/{{ .name }}, readOnly: true }
      {{- end }}
      {{- with $extraMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - { name: tmp, emptyDir: {} }
  {{- with concat $volumes $extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* A component with its own repository, tag or digest has neither the tag nor the digest of all. */}}
{{- define "toolscale.image" -}}
{{- $own := .given.image | default dict -}}
{{- $all := .root.Values.image -}}
{{- if or $own.repository $own.tag $own.digest -}}
{{- $all = omit $all "tag" "digest" -}}
{{- end -}}
{{- with merge (dict) $own $all -}}
image: {{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
imagePullPolicy: {{ .pullPolicy }}
{{- end -}}
{{- end -}}

{{/* A failed liveness probe restarts a pod; a failed readiness probe only delays clients and roll-outs. */}}
{{- define "toolscale.probes" -}}
{{- $port := dig "name" "metrics" (.port | default dict) -}}
{{- $alive := dict "path" (.alive | default "/healthz") "port" $port -}}
startupProbe:
  httpGet: {{ $alive | toJson }}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: {{ $alive | toJson }}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 4
readinessProbe:
  httpGet: {{ dict "path" (.ready | default "/readyz") "port" $port | toJson }}
  periodSeconds: 5
  timeoutSeconds: 4
  failureThreshold: 3
{{- end -}}
