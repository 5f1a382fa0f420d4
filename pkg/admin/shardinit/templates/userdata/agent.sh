#!/bin/sh
# Userdata of a machine, a template that the server renders (docs/server-reference.md#userdata).
# cloud-init runs it once, as root.
set -eu
umask 077
{{- $id := print .Provider.Kind ":///" .Provider.Zone "/" .Instance.ID}}
{{- if eq .Provider.Kind "aws"}}{{$id = print "aws:///" .Provider.Zone "/INSTANCE"}}{{end}}
{{- if eq .Provider.Kind "google"}}{{$id = print "gce://" .Vars.project "/" .Provider.Zone "/" .Instance.ID}}{{end}}
{{- $labels := print "nstance.dev/group=" .Instance.Group ",nstance.dev/shard=" .Server.Shard}}
{{- with index .Vars "labels"}}{{$labels = print $labels "," .}}{{end}}
{{- with .Node.LabelsArg}}{{$labels = print $labels "," .}}{{end}}

# The agent. Its nonce is in a file, because all users can read arguments.
mkdir -p /opt/nstance-agent/identity
cat >/opt/nstance-agent/identity/ca.crt <<'PEM'
{{.Cluster.CACert}}
PEM
cat >/opt/nstance-agent/identity/nonce.jwt <<'JWT'
{{.Nonce}}
JWT
cat >/etc/nstance-agent.env <<'ENV'
NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_INSTANCE_KIND={{.Instance.Kind}}
NSTANCE_PROVIDER={{.Provider.Kind}}
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
READINESS
ENV
{{- with index .Vars "agent_url"}}
if [ ! -x /usr/local/bin/nstance-agent ]; then
	curl -fsSL --retry 10 --retry-all-errors -o /usr/local/bin/nstance-agent.new {{shellQuote .}}
	echo {{shellQuote (print (index $.Vars "agent_sha256") "  /usr/local/bin/nstance-agent.new")}} | sha256sum -c -
	chmod 0755 /usr/local/bin/nstance-agent.new
	mv /usr/local/bin/nstance-agent.new /usr/local/bin/nstance-agent
fi
{{- end}}
if [ ! -e /etc/systemd/system/nstance-agent.service ]; then
	cat >/etc/systemd/system/nstance-agent.service <<'UNIT'
UNIT_OF_THE_AGENT
UNIT
	systemctl daemon-reload
fi
systemctl enable --now nstance-agent.service
