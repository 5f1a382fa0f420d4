// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/agentcloud"
	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/tcpproxy"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	shardID = "us-west-2a"
	// left and right are the subnets of the machines.
	left, right = "left", "right"
	// leaderTimeout is longer than a busy machine delays a renewal.
	leaderTimeout = 4 * time.Second
)

// server is one of the servers of the shard.
type server struct {
	*controlplane.Component
	operator nstancev1.OperatorServiceClient
	// host differs between the servers, which have the same ports.
	host string
}

// shard is a shard with its servers, its machines and their network.
type shard struct {
	t   testing.TB
	dir string
	settings
	cloud   *agentcloud.Cloud
	secrets secrets.Store
	// servers has the servers by id.
	servers map[string]server
	// registrations is the proxy through which all machines register, and subnets the proxies
	// through which the agents of a subnet reach the server.
	registrations *tcpproxy.Proxy
	subnets       map[string]*tcpproxy.Proxy
	ports         ports
}

type ports struct{ operator, health, registration, election, agent int }

// startShard starts the servers, which have no machines until the settings say so, and
// stops everything with the test. The logs of a failed test are kept.
func startShard(t testing.TB, s settings, room map[string]int) *shard {
	t.Helper()
	dir, err := os.MkdirTemp("", "nstance-agents-")
	require.NoError(t, err)
	sh := &shard{t: t, dir: dir, settings: s, servers: map[string]server{}, subnets: map[string]*tcpproxy.Proxy{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs, storage and machines: %s", dir)
			return
		}
		assert.NoError(t, os.RemoveAll(dir))
	})
	p := &sh.ports
	require.NoError(t, controlplane.FillInPorts([]*int{&p.operator, &p.health, &p.registration, &p.election, &p.agent}))
	sh.registrations = sh.startProxy(p.registration)
	for _, name := range []string{left, right} {
		sh.subnets[name] = sh.startProxy(p.agent)
	}
	sh.cloud, err = agentcloud.Start(t.Context(), agentcloud.Options{
		Agent: agentProgram,
		Dir:   filepath.Join(dir, "machines"),
		Room:  room,
		Environment: func(subnet string) []string {
			return []string{"NSTANCE_SERVER_AGENT_ADDR=" + sh.subnets[subnet].Address}
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, sh.cloud.Close()) })
	authority, secrets, err := installation.CreateKeys(t.Context(), sh.encryptionKeyFile(), sh.bucket())
	require.NoError(t, err)
	sh.secrets = secrets
	sh.write()
	for id, host := range map[string]string{"1": "127.0.0.1", "2": "127.0.0.2"} {
		address := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
		conn, err := installation.Dial(authority, shardID, address(p.operator))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		sh.servers[id] = server{sh.component(id, host, address(p.health)), nstancev1.NewOperatorServiceClient(conn), host}
	}
	for _, id := range []string{"1", "2"} {
		component := sh.servers[id].Component
		require.NoError(t, component.Start(t.Context()))
		t.Cleanup(func() { assert.NoError(t, component.Stop(context.Background())) })
	}
	return sh
}

func (s *shard) component(id, host, health string) *controlplane.Component {
	return controlplane.NewComponent(s.dir, controlplane.Spec{
		Name: "server-" + id,
		Argv: []string{
			serverProgram, "--shard", shardID, "--id", id, "--host", host,
			"--bucket", s.bucket(), "--cache-dir", filepath.Join(s.dir, "cache-"+id), "--v", "2",
		},
		Ready: controlplane.Probe{URL: "http://" + health + "/health"},
	})
}

// startProxy starts a proxy to a port of the server that leads.
func (s *shard) startProxy(port int) *tcpproxy.Proxy {
	s.t.Helper()
	proxy, err := tcpproxy.Start(s.t.Context(), func() (string, error) {
		leader, err := s.leader()
		return net.JoinHostPort(leader.host, strconv.Itoa(port)), err
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = proxy.Close() })
	return proxy
}

// leader returns the server that the lock in the storage names.
func (s *shard) leader() (server, error) {
	data, err := os.ReadFile(s.object(storage.ShardLeaderKey(shardID)))
	if err != nil {
		return server{}, err
	}
	var lock struct {
		LeaderID string `json:"leaderID"`
	}
	if err := json.Unmarshal(data, &lock); err != nil {
		return server{}, err
	}
	for id, server := range s.servers {
		if lock.LeaderID == shardID+"/"+id {
			return server, nil
		}
	}
	return server{}, errors.New("no server leads")
}

func (s *shard) bucket() string { return filepath.Join(s.dir, "bucket") }

func (s *shard) object(key string) string {
	return filepath.Join(s.bucket(), filepath.FromSlash(key))
}

func (s *shard) encryptionKeyFile() string { return filepath.Join(s.dir, "encryption.key") }

// object is a JSON object.
type object = map[string]any

// settings are the variable part of the configuration.
type settings struct {
	// groups has the size of each group.
	groups map[string]int
	// userdata is the userdata of all machines.
	userdata string
	// files and vars are fields of the template, and certificates are certificate templates.
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

// userdata writes the files that an agent needs. The folder of the machine is the working
// directory.
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
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
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
	// A nil map would be null in JSON, not an empty object.
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
			// The tests ask for the status of every instance, again and again.
			"max_calls_per_second":  100000,
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
