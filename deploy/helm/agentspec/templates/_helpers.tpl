{{/* Prefix of all names, at most 50 characters: suffixes follow. */}}
{{- define "agentspec.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "agentspec.gateway" -}}
{{ include "agentspec.fullname" . }}-gateway
{{- end -}}

{{- define "agentspec.engine" -}}
{{ include "agentspec.fullname" . }}-engine
{{- end -}}

{{/* Labels by which objects select pods. Argument: (list . "gateway") */}}
{{- define "agentspec.selector" -}}
app.kubernetes.io/name: {{ default (index . 0).Chart.Name (index . 0).Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "agentspec.labels" -}}
{{ include "agentspec.selector" . }}
{{- with index . 0 }}
app.kubernetes.io/part-of: agentspec
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Argument: (list . .Values.gateway.image) */}}
{{- define "agentspec.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index . 0).Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* Seconds from the end of a gateway's pod to its kill: the pause, the grace period, last responses (3) and last
spans (10) if their collector is down, and some to spare. */}}
{{- define "agentspec.gatewayEndSeconds" -}}
{{ add .Values.gateway.drainDelaySeconds .Values.gateway.graceSeconds 20 }}
{{- end -}}

{{/* The engine's grace period, vLLM's own end (10) and some to spare. */}}
{{- define "agentspec.engineEndSeconds" -}}
{{ add .Values.engine.graceSeconds 30 }}
{{- end -}}

{{- define "agentspec.numEngines" -}}
{{- if eq .Values.engine.autoscaling.kind "none" -}}
{{ .Values.engine.replicas }}
{{- else -}}
{{ .Values.engine.autoscaling.maxReplicas }}
{{- end -}}
{{- end -}}

{{/* Matchers of the gateways' series in Prometheus. */}}
{{- define "agentspec.series" -}}
namespace={{ .Release.Namespace | quote }},pod=~{{ printf "%s-.*" (include "agentspec.gateway" .) | quote }}
{{- end -}}

{{/* The end of a trigger of KEDA. */}}
{{- define "agentspec.triggerAuthentication" -}}
{{- with .Values.prometheus.authenticationRef }}
authenticationRef:
  name: {{ . }}
{{- end }}
{{- end -}}

{{/* Pods leave one at a time, each after the one before has ended. Argument: (list seconds endSeconds) */}}
{{- define "agentspec.scaling" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 2, periodSeconds: 60}
  selectPolicy: Max
scaleDown:
  stabilizationWindowSeconds: {{ index . 0 }}
  policies:
    - {type: Pods, value: 1, periodSeconds: {{ index . 1 }}}
{{- end -}}

{{/* What the schema can't say. */}}
{{- define "agentspec.check" -}}
{{- $config := .Values.gateway.config -}}
{{- $server := default dict $config.server -}}
{{- if hasKey $server "grace_s" -}}
{{- fail (printf "gateway.config.server.grace_s is %v: set gateway.graceSeconds instead, which the pod's time to end follows" $server.grace_s) -}}
{{- end -}}
{{- if or (hasKey $server "host") (hasKey $server "port") -}}
{{- fail "gateway.config.server.host and .port are set by the chart: leave them out, and choose the port of clients by gateway.service.port" -}}
{{- end -}}
{{- if and .Values.engine.enabled $config.upstreams -}}
{{- fail "gateway.config.upstreams lists engines, and engine.enabled makes some: set engine.enabled=false, or leave the list out" -}}
{{- end -}}
{{- if and (not .Values.engine.enabled) (not $config.upstreams) -}}
{{- fail "there is no engine: set engine.enabled=true, or list running engines in gateway.config.upstreams" -}}
{{- end -}}
{{- range $part := list "gateway" "engine" -}}
{{- $scaling := (index $.Values $part).autoscaling -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail (printf "%s.autoscaling.minReplicas is %v, more than maxReplicas, %v: raise maxReplicas" $part $scaling.minReplicas $scaling.maxReplicas) -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.gateway.autoscaling.kind "none") (not (dig "requests" "cpu" "" .Values.gateway.resources)) -}}
{{- fail (printf "gateway.autoscaling.kind is %q, which measures CPU: set gateway.resources.requests.cpu" .Values.gateway.autoscaling.kind) -}}
{{- end -}}
{{- if lt (int .Values.gateway.autoscaling.scaleDownSeconds) (int (include "agentspec.gatewayEndSeconds" .)) -}}
{{- fail (printf "gateway.autoscaling.scaleDownSeconds is %v: set at least %s, the time that a gateway takes to end" .Values.gateway.autoscaling.scaleDownSeconds (include "agentspec.gatewayEndSeconds" .)) -}}
{{- end -}}
{{- if lt (int .Values.engine.autoscaling.scaleDownSeconds) (int (include "agentspec.engineEndSeconds" .)) -}}
{{- fail (printf "engine.autoscaling.scaleDownSeconds is %v: set at least %s, the time that an engine takes to end" .Values.engine.autoscaling.scaleDownSeconds (include "agentspec.engineEndSeconds" .)) -}}
{{- end -}}
{{- if and .Values.engine.modelCache.existingClaim .Values.engine.modelCache.storage -}}
{{- fail (printf "engine.modelCache.existingClaim is %q and .storage %q: give one of the two" .Values.engine.modelCache.existingClaim .Values.engine.modelCache.storage) -}}
{{- end -}}
{{- if and .Values.corpus.existingSecret (not .Values.engine.enabled) -}}
{{- fail (printf "corpus.existingSecret is %q, but engines that the chart does not start get no corpus from it: leave it out, and see docs/fleet.md" .Values.corpus.existingSecret) -}}
{{- end -}}
{{- end -}}
