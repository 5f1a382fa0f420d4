// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/s3"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
)

const (
	shardID   = "a"
	tenant    = "default"
	groupName = "workers"
	bucket    = "nstance"
	loopback  = "127.0.0.1"
)

// object is a JSON object.
type object = map[string]any

// userdata is read by the program init of testguest.
const userdata = `NSTANCE_INSTANCE_ID={{.Instance.ID}}
NSTANCE_SERVER_REGISTRATION_ADDR={{.Server.RegistrationAddr}}
NSTANCE_SERVER_AGENT_ADDR={{.Server.AgentAddr}}
NSTANCE_SERVER_URI=nstance://{{.Cluster.ID}}/{{.Server.Shard}}
NSTANCE_REPORT_INTERVAL={{.Server.HealthCheckInterval}}
identity/nonce.jwt={{.Nonce}}
identity/ca.crt<<END
{{.Cluster.CACert}}
END
`

// options are the parts of a server's configuration that differ by test.
type options struct {
	// cluster is the id of the cluster.
	cluster string
	// provider is the name of the provider, and providerOptions its options.
	provider        string
	providerOptions object
	// instanceType, subnet and args are the instance type, subnet and arguments of all instances.
	instanceType, subnet string
	args                 object
	userdata             string
	// bindHost is the address at which the server listens for agents, and advertiseHost the
	// address that instances are given.
	bindHost, advertiseHost string
	drainTimeout            string
}

// server is a shard server that can be killed and started again.
type server struct {
	t *testing.T
	// dir has the caches and the log.
	dir          string
	store        storage.Store
	authority    *pki.Authority
	cluster      string
	operatorAddr string
	// caches counts the caches that were lost.
	caches int

	// mu guards the fields below.
	mu      sync.Mutex
	process *exec.Cmd
	exited  chan struct{}
}

// newServer returns a server that does not run, with a storage behind a tap.
func newServer(t *testing.T, o options, storageTap *tap) *server {
	t.Helper()
	s3test.Start(t, storageTap.wrap)
	s3test.CreateBucket(t, bucket)
	store, err := s3.Open(t.Context(), bucket)
	require.NoError(t, err)
	s := &server{t: t, dir: t.TempDir(), store: store, cluster: o.cluster}

	key := make([]byte, 32)
	_, err = rand.Read(key)
	require.NoError(t, err)
	keyFile := filepath.Join(s.dir, "encryption.key")
	require.NoError(t, os.WriteFile(keyFile, []byte(base64.StdEncoding.EncodeToString(key)), 0o600))
	encrypted, err := secrets.New(store, key)
	require.NoError(t, err)
	keys, err := clusterkeys.Ensure(t.Context(), store, encrypted, o.cluster)
	require.NoError(t, err)
	s.authority = keys.Authority

	config, err := json.Marshal(s.configuration(o, keyFile))
	require.NoError(t, err)
	_, err = store.Create(t.Context(), storage.ConfigKey(shardID), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("the end of the server's log:\n%s", tail(s.logPath(), 16<<10))
		}
	})
	return s
}

func (s *server) configuration(o options, keyFile string) object {
	var operator, health, election, registration, agents int
	require.NoError(s.t, controlplane.FillInPorts([]*int{&operator, &health, &election, &registration, &agents}))
	address := func(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	s.operatorAddr = address(loopback, operator)
	alone := object{"enabled": false}
	return object{
		"cluster": object{
			"id": o.cluster, "leader_election": alone,
			"secrets": object{"provider": "object-storage", "encryption_key": object{"file": keyFile}},
		},
		"shard": object{
			"id":    shardID,
			"infra": object{"provider": o.provider, "region": "region", "zone": "zone", "options": o.providerOptions},
			"bind": object{
				"operator_addr": s.operatorAddr, "health_addr": address(loopback, health), "election_addr": address(loopback, election),
				"registration_addr": address(o.bindHost, registration), "agent_addr": address(o.bindHost, agents),
			},
			"advertise": object{
				"registration_addr": address(o.advertiseHost, registration), "agent_addr": address(o.advertiseHost, agents),
			},
			// A server that starts need not wait for the lock of a killed server.
			"leader_election":       alone,
			"subnet_pools":          object{"default": []string{o.subnet}},
			"default_drain_timeout": o.drainTimeout,
			"health_check_interval": "5s",
		},
		"templates": object{"worker": object{
			"kind": "knd", "arch": "amd64", "instance_type": o.instanceType, "subnet_pool": "default", "args": merged(o.args), "userdata": o.userdata,
		}},
		"groups": object{tenant: object{groupName: object{"template": "worker", "size": 0}}},
	}
}

// merged returns an object with the members of all objects.
func merged(objects ...object) object {
	all := object{}
	for _, o := range objects {
		maps.Copy(all, o)
	}
	return all
}

func (s *server) logPath() string { return filepath.Join(s.dir, "log") }

// start starts a process of the server.
func (s *server) start() {
	s.t.Helper()
	log, err := os.OpenFile(s.logPath(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	require.NoError(s.t, err)
	defer log.Close()
	cmd := exec.Command(programs[serverProgram], "--shard", shardID, "--id", "1", "--storage", "s3", "--bucket", bucket,
		"--cache-dir", filepath.Join(s.dir, "cache"+strconv.Itoa(s.caches)), "--v", "2")
	cmd.Stdout, cmd.Stderr = log, log
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NoError(s.t, cmd.Start())
	exited := make(chan struct{})
	s.process, s.exited = cmd, exited
	go func() {
		defer close(exited)
		_ = cmd.Wait() // it is killed
	}()
}

// kill kills the process, if one runs, and waits until it has exited.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill() // it may have exited
	<-s.exited
	s.process = nil
}

// runs reports whether a process runs.
func (s *server) runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// awaitExit returns when the process has exited, or after a while.
func (s *server) awaitExit(d time.Duration) {
	s.mu.Lock()
	exited := s.exited
	s.mu.Unlock()
	select {
	case <-exited:
	case <-time.After(d):
	}
}

// records returns the names of the records of all instances, in order.
func (s *server) records() []string {
	s.t.Helper()
	infos, err := s.store.List(s.t.Context(), storage.InstancePrefix(shardID))
	require.NoError(s.t, err)
	var names []string
	for _, info := range infos {
		names = append(names, recordName(info.Key))
	}
	slices.Sort(names)
	return names
}

// recordName returns the name of the record of a key.
func recordName(key string) string {
	name := strings.TrimSuffix(key[strings.LastIndex(key, "/")+1:], ".json")
	return name[strings.LastIndex(name, ".")+1:]
}

// recordNames returns the names of the records of instances, in order.
func recordNames(t *testing.T, ids []string) []string {
	t.Helper()
	var names []string
	for _, id := range ids {
		parsed, err := puidv7.Parse(id)
		require.NoError(t, err)
		names = append(names, parsed.StorageKey())
	}
	slices.Sort(names)
	return names
}

// tail returns the end of a file.
func tail(path string, size int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-size):])
}
