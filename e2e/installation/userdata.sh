#!/bin/bash
# Userdata of a node that is a container (hack/node). It is a Go template.
set -euo pipefail

umask 077
mkdir -p /opt/nstance-agent/identity
cat >/opt/nstance-agent/identity/ca.crt <<'PEM'
{{.Cluster.CACert}}
PEM
printf '%s' '{{.Nonce}}' >/opt/nstance-agent/identity/nonce.jwt
cat >/etc/nstance-agent.env <<'ENV'
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
NSTANCE_PROVIDER=aws
NSTANCE_READY_URL=http://127.0.0.1:10248/healthz
ENV

mkdir -p /etc/kubernetes/pki
base64 -d >/etc/kubernetes/pki/ca.crt <<<'CLUSTER_CA'
# The agent receives it when it has registered.
ln -s /opt/nstance-agent/recv/join.json /etc/kubernetes/bootstrap.conf
cat >/etc/kubernetes/kubelet.env <<ENV
KUBELET_FLAGS="--provider-id=$NSTANCE_PROVIDER_ID --node-labels=nstance.dev/group={{.Instance.Group}},nstance.dev/shard={{.Server.Shard}},node.kubernetes.io/instance-type={{.Instance.Type}},topology.kubernetes.io/region={{.Provider.Region}},topology.kubernetes.io/zone={{.Provider.Zone}},NODE_LABELS{{with .Node.LabelsArg}},{{.}}{{end}}{{with .Node.TaintsArg}} --register-with-taints={{.}}{{end}}{{with .Node.MaxPods}} --max-pods={{.}}{{end}} CLUSTER_DNS"
ENV
