#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Userdata of a template: cloud-init runs it once, on an image that contains the program
# nstance-agent and its unit. The nonce is written to a file that only root can read, not
# passed as an argument.
set -eu
umask 077
mkdir -p /opt/nstance-agent/identity
cat >/opt/nstance-agent/identity/ca.crt <<'EOF'
{{.Cluster.CACert}}
EOF
cat >/opt/nstance-agent/identity/nonce.jwt <<'EOF'
{{.Nonce}}
EOF
cat >/etc/nstance-agent.env <<'EOF'
NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_INSTANCE_KIND={{.Instance.Kind}}
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
NSTANCE_PROVIDER={{.Provider.Kind}}
EOF
systemctl enable --now nstance-agent.service
