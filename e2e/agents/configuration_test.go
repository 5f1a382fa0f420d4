// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/agentcloud"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/server/storage"
)

// object is a JSON object.
type object = map[string]any

// settings are the variable part of the configuration.
type settings struct {
	// groups has sizes.
	groups map[string]int
	// userdata is that of all machines.
	userdata string
	// files and vars are those of the template, and certificates are certificate templates.
	files, certificates object
	vars                map[string]string
	// reportInterval is how often agents report, and registrationTimeout how long they may
	// take to register.
	reportInterval, registrationTimeout time.Duration
}

// size returns how many instances the groups have.
func (s *settings) size() int {
	size := 0
	for _, n := range s.groups {
		size += n
	}
	return size
}

// userdata writes what an agent needs. The folder of the machine is the working directory.
const userdata = `set -eu
umask 077
mkdir identity
cat >identity/ca.crt <<'PEM'
{{.Cluster.CACert}}
PEM
printf '%s' '{{.Nonce}}' >identity/nonce.jwt
cat >agent.env <<ENV
NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
NSTANCE_INSTANCE_HOSTNAME={{.Instance.ID}}
NSTANCE_IDENTITY_DIR=identity
NSTANCE_KEYS_DIR=keys
NSTANCE_RECV_DIR=recv
ENV
`

// configure changes the settings of a shard that runs. Its server applies them when it
// reads its configuration next.
func (s *shard) configure(change func(*settings)) {
	s.t.Helper()
	change(&s.settings)
	s.write()
}

// write replaces the configuration in one step.
func (s *shard) write() {
	s.t.Helper()
	data, err := json.MarshalIndent(s.configuration(), "", "  ")
	require.NoError(s.t, err)
	path := s.object(storage.ConfigKey(shardID))
	require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(s.t, os.WriteFile(path+".new", data, 0o600))
	require.NoError(s.t, os.Rename(path+".new", path))
}

func (s *shard) configuration() object {
	bind := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	groups := object{}
	for name, size := range s.groups {
		groups[name] = object{"template": "worker", "size": size}
	}
	// JSON has null for nil, which is not an empty object.
	files, certificates, vars := object{}, object{}, map[string]string{}
	maps.Copy(files, s.files)
	maps.Copy(certificates, s.certificates)
	maps.Copy(vars, s.vars)
	return object{
		"cluster": object{
			"id":      installation.ClusterID,
			"secrets": object{"provider": "object-storage", "encryption_key": object{"file": s.encryptionKeyFile()}},
		},
		"shard": object{
			"id":    shardID,
			"infra": object{"provider": agentcloud.Name, "region": "us-west-2", "zone": shardID, "options": object{"url": s.cloud.URL}},
			"bind": object{
				"health_addr":       bind(s.ports.health),
				"election_addr":     bind(s.ports.election),
				"registration_addr": bind(s.ports.registration),
				"operator_addr":     bind(s.ports.operator),
				"agent_addr":        bind(s.ports.agent),
			},
			"advertise": object{
				"registration_addr": s.registrations.Address,
				"agent_addr":        s.subnets[right].Address,
			},
			"leader_election":       object{"interval": (leaderTimeout / 5).String(), "timeout": leaderTimeout.String()},
			"garbage_collection":    object{"interval": "5s", "registration_timeout": s.registrationTimeout.String()},
			"health_check_interval": s.reportInterval.String(),
			"subnet_pools":          object{"default": []string{left, right}},
			"default_drain_timeout": "0s",
		},
		"defaults": object{"userdata": s.userdata},
		"templates": object{"worker": object{
			"kind": "knd", "arch": "amd64", "instance_type": agentcloud.InstanceType, "subnet_pool": "default",
			"vars": vars, "files": files,
		}},
		"certificates": certificates,
		"groups":       object{installation.Tenant: groups},
	}
}
