{{- define "slipstream.labels" -}}
app.kubernetes.io/name: slipstream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "slipstream.image" -}}
{{ index .root.Values.image .name }}:{{ .tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "slipstream.podSecurity" -}}
serviceAccountName: {{ .Release.Name }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "slipstream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "slipstream.secret" -}}
- name: {{ .env | default .key }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.secretName }}, key: {{ .key }}, optional: {{ .optional | default false }}}}
{{- end }}

{{/* Variables of every process; `database` is the key of the secret that holds the database URL with its role. */}}
{{- define "slipstream.env" -}}
- {name: SLIPSTREAM_ALLOWED_HOSTS, value: {{ .root.Values.host | quote }}}
- {name: SLIPSTREAM_S3_BUCKET, value: {{ .root.Values.s3.bucket | quote }}}
- {name: SLIPSTREAM_S3_ENDPOINT_URL, value: {{ .root.Values.s3.endpointUrl | quote }}}
- {name: AWS_DEFAULT_REGION, value: {{ .root.Values.s3.region | quote }}}
{{ include "slipstream.secret" (dict "root" .root "key" "SLIPSTREAM_SECRET_KEY") }}
{{ include "slipstream.secret" (dict "root" .root "key" .database "env" "SLIPSTREAM_DATABASE_URL") }}
{{ include "slipstream.secret" (dict "root" .root "key" "SLIPSTREAM_REDIS_URL") }}
{{ include "slipstream.secret" (dict "root" .root "key" "SLIPSTREAM_METRICS_TOKEN") }}
{{ include "slipstream.secret" (dict "root" .root "key" "AWS_ACCESS_KEY_ID" "optional" true) }}
{{ include "slipstream.secret" (dict "root" .root "key" "AWS_SECRET_ACCESS_KEY" "optional" true) }}
{{- range $name, $value := .root.Values.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "slipstream.engineHost" -}}
- {name: SLIPSTREAM_ENGINE_HOST, value: {{ .Release.Name }}-endpoints}
- {name: SLIPSTREAM_NODE_NAME, value: {{ .Release.Name }}-endpoints}  # one pod supervises them, whatever its host name
{{- end }}

{{/* One container with API, console and gateway; two Deployments use it. */}}
{{- define "slipstream.webContainer" -}}
- name: web
  image: {{ include "slipstream.image" (dict "root" .root "name" "web") }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  securityContext: {{- include "slipstream.containerSecurity" . | nindent 4 }}
  env:
    {{- with .drainSeconds }}
    - {name: UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN, value: {{ . | quote }}}
    {{- end }}
    {{- if .engines }}
    {{- include "slipstream.engineHost" .root | nindent 4 }}
    {{- end }}
    - {name: FORWARDED_ALLOW_IPS, value: "*"}  # the network policy admits only the ingress
    - {name: SLIPSTREAM_PUBLIC_URL, value: {{ printf "https://%s" .root.Values.host | quote }}}
    - {name: SLIPSTREAM_MAIL_FROM, value: {{ .root.Values.mailFrom | quote }}}
    - {name: SLIPSTREAM_OIDC_ISSUER, value: {{ .root.Values.oidc.issuer | quote }}}
    - {name: SLIPSTREAM_OIDC_CLIENT_ID, value: {{ .root.Values.oidc.clientId | quote }}}
    - {name: SLIPSTREAM_OIDC_NAME, value: {{ .root.Values.oidc.name | quote }}}
    {{- include "slipstream.secret" (dict "root" .root "key" "SLIPSTREAM_SMTP_URL" "optional" true) | nindent 4 }}
    {{- include "slipstream.secret" (dict "root" .root "key" "SLIPSTREAM_OIDC_CLIENT_SECRET" "optional" true) | nindent 4 }}
    {{- include "slipstream.env" (dict "root" .root "database" "SLIPSTREAM_DATABASE_URL") | nindent 4 }}
  ports: [{name: http, containerPort: 8000}]
  startupProbe: {httpGet: {path: /livez, port: http}, periodSeconds: 2, failureThreshold: 60}
  livenessProbe: {httpGet: {path: /livez, port: http}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 3}
  readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 5, timeoutSeconds: 5, failureThreshold: 2}
  lifecycle: {preStop: {exec: {command: [sleep, "10"]}}}  # time for proxies to stop sending requests to this pod
  resources: {{- toYaml .resources | nindent 4 }}
  volumeMounts:
    - {name: data, mountPath: /data}
    - {name: tmp, mountPath: /tmp}
    - {name: run, mountPath: /run/slipstream}
    - {name: models, mountPath: /models, readOnly: true}
{{- end }}

{{/* Waits until the migrations of this version are applied, so that a pod never runs with an older schema. */}}
{{- define "slipstream.migrated" -}}
- name: migrated
  image: {{ include "slipstream.image" (dict "root" .root "name" .image "tag" .tag) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [python, manage.py, migrate, --check]
  securityContext: {{- include "slipstream.containerSecurity" . | nindent 4 }}
  env: {{- include "slipstream.env" (dict "root" .root "database" "SLIPSTREAM_DATABASE_URL") | nindent 4 }}
  volumeMounts: [{name: data, mountPath: /data}, {name: tmp, mountPath: /tmp}, {name: run, mountPath: /run/slipstream}]
{{- end }}

{{- define "slipstream.volumes" -}}
- {name: data, emptyDir: {sizeLimit: {{ .dataSize }}}}
- {name: tmp, emptyDir: {sizeLimit: 5Gi}}
- {name: run, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
- name: models
  persistentVolumeClaim: {claimName: {{ .root.Values.models.claimName }}, readOnly: true}
{{- end }}
