#!/bin/bash
# Userdata of the nodes of a cluster that manages itself, which are containers (hack/node). It is a Go
# template, to which worker.sh, or control-plane.sh and initialize.sh are appended, with
# replica.sh between them if the control plane has several machines.
set -euo pipefail
umask 077
mkdir -p /opt/nstance-agent/identity
cat >/opt/nstance-agent/identity/ca.crt <<'PEM'
{{.Cluster.CACert}}
PEM
printf '%s' '{{.Nonce}}' >/opt/nstance-agent/identity/nonce.jwt
cat >/etc/nstance-agent.env.new <<'ENV'
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
NSTANCE_READY_FILE=/run/nstance-joined
ENV
# The agent starts as soon as the file is there.
mv /etc/nstance-agent.env.new /etc/nstance-agent.env

{{- with .Vars.registry}}
# containerd pulls images from this registry without TLS.
mkdir -p /etc/containerd/certs.d/{{.}}
echo '[host."http://{{.}}"]' >/etc/containerd/certs.d/{{.}}/hosts.toml
{{- end}}

recv=/opt/nstance-agent/recv
node_ip=$(ip -4 -o addr show eth0 | awk '{sub("/.*", "", $4); print $4}')
echo 1 >/proc/sys/net/ipv4/ip_forward

# wait_for FILE: waits until the agent has received a file.
wait_for() {
	until [ -s "$1" ]; do sleep 0.2; done
	echo "$(date +%T) $1 was received"
}

# registration is what the configurations of kubeadm init and of kubeadm join have in common.
registration() {
	cat <<YAML
nodeRegistration:
  name: {{.Instance.ID}}
  criSocket: unix:///run/containerd/containerd.sock
  imagePullPolicy: Never
  # It does not know the kernels of all machines, and not their control groups.
  ignorePreflightErrors: [SystemVerification]
  kubeletExtraArgs:
    - {name: node-ip, value: "$node_ip"}
    - {name: provider-id, value: "$NSTANCE_PROVIDER_ID"}
    - {name: node-labels, value: "nstance.dev/group={{.Instance.Group}},nstance.dev/shard={{.Server.Shard}},node.kubernetes.io/instance-type={{.Instance.Type}},topology.kubernetes.io/region={{.Provider.Region}},topology.kubernetes.io/zone={{.Provider.Zone}}{{with .Node.LabelsArg}},{{.}}{{end}}"}
{{- with .Node.TaintsArg}}
    - {name: register-with-taints, value: {{toJSON .}}}
{{- end}}
{{- with .Node.MaxPods}}
    - {name: max-pods, value: {{toJSON .}}}
{{- end}}
patches: {directory: /etc/kubernetes/patches}
YAML
}
