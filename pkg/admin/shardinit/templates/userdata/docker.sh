#!/bin/bash
# Userdata of a node that is a container of the image nstance-node (docs/providers.md#nodes), a
# template that the server renders.
set -euo pipefail
umask 077
{{- $labels := print "nstance.dev/group=" .Instance.Group ",nstance.dev/shard=" .Server.Shard}}
{{- with index .Vars "labels"}}{{$labels = print $labels "," .}}{{end}}
{{- with .Node.LabelsArg}}{{$labels = print $labels "," .}}{{end}}
mkdir -p /opt/nstance-agent/identity
cat >/opt/nstance-agent/identity/ca.crt <<'PEM'
{{.Cluster.CACert}}
PEM
printf '%s' '{{.Nonce}}' >/opt/nstance-agent/identity/nonce.jwt
cat >/etc/nstance-agent.env <<'ENV'
NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_INSTANCE_KIND={{.Instance.Kind}}
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
READINESS
ENV
