// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

// SetConfig changes the options that are keys of the configuration, writes the
// file, and returns when the server has put it in force or rejected it.
func (s *Server) SetConfig(change func(*Options)) {
	s.t.Helper()
	change(&s.options)
	s.WriteConfig(s.options.configuration(s.encryptionKeyPath()))
}

// WriteConfig is SetConfig for a file of any content. When it returns, the server has
// reported an invalid file.
func (s *Server) WriteConfig(content string) {
	s.t.Helper()
	s.writeFile(s.ConfigPath(), []byte(content))
	s.ReadConfig()
}

// ReadConfig makes the server read its configuration as often as it needs to put it
// in force or report it, and returns when the server has done so or has stopped.
func (s *Server) ReadConfig() {
	// The server receives a tick only after it has processed the previous tick. It reports an
	// invalid file the second time.
	for range 3 {
		select {
		case s.readConfig <- time.Now():
		case <-s.stopped:
		}
	}
}

// ConfigPath is the path of the configuration in the storage. ReadConfig makes the server
// read a change of it.
func (s *Server) ConfigPath() string {
	return filepath.Join(s.Bucket(), filepath.FromSlash(storage.ConfigKey(s.options.shard())))
}

// GroupsPath is the path of the file with the dynamic groups.
func (s *Server) GroupsPath() string {
	return filepath.Join(s.Bucket(), filepath.FromSlash(storage.GroupsKey(s.options.shard())))
}

func (s *Server) writeFile(path string, content []byte) {
	s.t.Helper()
	require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(s.t, os.WriteFile(path, content, 0o600))
}

func (o Options) cluster() string {
	return cmp.Or(o.Cluster, ClusterID)
}

func (o Options) shard() string {
	return cmp.Or(o.Shard, "us-west-2a")
}

func (o Options) bind() string {
	if o.InMemory {
		return `{"health_addr": "health:1", "election_addr": "election:1", "registration_addr": "registration:1", "operator_addr": "operator:1"` + o.bindAgents("agent:1") + `}`
	}
	return fmt.Sprintf(`{"health_addr": %q, "election_addr": "127.0.0.1:0", "registration_addr": %q, "operator_addr": %q%s}`,
		cmp.Or(o.HealthAddr, "127.0.0.1:0"), cmp.Or(o.RegistrationAddr, "127.0.0.1:0"), cmp.Or(o.Addr, "127.0.0.1:0"),
		o.bindAgents(cmp.Or(o.AgentAddr, "127.0.0.1:0")))
}

func (o Options) bindAgents(address string) string {
	if !o.Agents {
		return ""
	}
	return fmt.Sprintf(`, "agent_addr": %q`, address)
}

// more returns the keys of the shard that the options set and that have defaults in the
// product.
func (o Options) more() string {
	var keys string
	if o.Advertise != "" {
		keys += fmt.Sprintf(`"advertise": %s,`, o.Advertise)
	}
	// Tests and benchmarks make more calls than an operator.
	keys += fmt.Sprintf(`"max_calls_per_second": %d,`, cmp.Or(o.MaxCallsPerSecond, 1_000_000))
	if o.LeaderNetwork != "" {
		keys += fmt.Sprintf(`"leader_network": %s,`, o.LeaderNetwork)
	}
	if o.HealthCheckInterval != "" {
		keys += fmt.Sprintf(`"health_check_interval": %q,`, o.HealthCheckInterval)
	}
	if o.RegistrationTimeout != "" {
		// The interval must be shorter.
		keys += fmt.Sprintf(`"garbage_collection": {"interval": "1s", "registration_timeout": %q},`, o.RegistrationTimeout)
	}
	return keys
}

// defaults returns the userdata of instances with agents.
func (o Options) defaults() string {
	if !o.Agents {
		return `{}`
	}
	return `{"userdata": "{{.Instance.ID}} {{.Nonce}}"}`
}

// configuration returns the file that o describes.
func (o Options) configuration(encryptionKeyPath string) string {
	return fmt.Sprintf(`{
		"cluster": {"id": %q, "secrets": {"provider": "object-storage", "encryption_key": {"file": %q}}},
		"shard": {
			"id": %q,
			"infra": {
				"provider": %q, "region": "us-west-2", "zone": %q,
				// The provider does not read it: the test passes a clientset.
				"options": {"kubeconfig": "/kubeconfig", "boot_delay": %q, "instance_types": %s, "quota": %s},
			},
			"bind": %s,
			"default_drain_timeout": %q,
			"subnet_pools": %s,
			"dynamic_subnet_pools": %s,
			%s
		},
		"defaults": %s,
		"templates": %s,
		"groups": %s,
		"load_balancers": %s,
		"certificates": {"operator": {"ttl": %q}, "agent": {"ttl": %q}, %s},
	}`, o.cluster(), encryptionKeyPath, o.shard(), kwoktest.Name, o.shard(), o.BootDelay, cmp.Or(o.InstanceTypes, `{}`), cmp.Or(o.Quota, `{}`),
		o.bind(), cmp.Or(o.DrainTimeout, "0s"),
		cmp.Or(o.SubnetPools, `{"default": ["subnet-a"]}`),
		cmp.Or(o.DynamicSubnetPools, `[]`),
		o.more(), cmp.Or(o.Defaults, o.defaults()),
		cmp.Or(o.Templates, `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default",
			"tenants": ["*"], "limits": {"vars": ["*"], "on_demand": true}}}`),
		cmp.Or(o.Groups, `{}`), cmp.Or(o.LoadBalancers, `{}`), cmp.Or(o.CertificateTTL, "24h"), cmp.Or(o.AgentCertificateTTL, "24h"), o.Certificates)
}

// encryptionKey encrypts the secrets of all servers of this package.
var encryptionKey = bytes.Repeat([]byte("0123"), 8)

// openStorage opens the server's storage and creates the keys of the cluster in it
// if they are missing.
func (s *Server) openStorage() {
	s.t.Helper()
	ctx := context.Background()
	require.NoError(s.t, os.MkdirAll(s.Bucket(), 0o700))
	store, err := file.Open(s.Bucket())
	require.NoError(s.t, err)
	s.Storage = store
	s.Secrets, err = secrets.New(store, encryptionKey)
	require.NoError(s.t, err)
	s.writeFile(s.encryptionKeyPath(), encryptionKey)
	if s.Authority != nil {
		s.storeAuthority(ctx)
	}
	made, err := clusterkeys.Ensure(ctx, store, s.Secrets, s.options.cluster())
	require.NoError(s.t, err)
	s.Authority = made.Authority
}

// storeAuthority stores the authority of another server as the authority of the cluster.
func (s *Server) storeAuthority(ctx context.Context) {
	s.t.Helper()
	require.NoError(s.t, clusterkeys.Import(ctx, s.Storage, s.Secrets, s.Authority))
}

// Bucket is the folder of the storage.
func (s *Server) Bucket() string {
	return cmp.Or(s.options.SharedBucket, filepath.Join(s.DataDir, "bucket"))
}

func (s *Server) encryptionKeyPath() string { return filepath.Join(s.DataDir, "encryption.key") }

// ReadFile returns the content of an object of the storage.
func (s *Server) ReadFile(key string) []byte {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.Bucket(), filepath.FromSlash(key)))
	require.NoError(s.t, err)
	return data
}
