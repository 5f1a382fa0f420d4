// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package spotnotices shows that machines are replaced and drained if a cloud announces the
// termination of many of them at once: agents that poll a metadata service, a shard server and an
// operator on a real control plane. The Nodes are simulated.
package spotnotices

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/klog/v2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/agent"
	"nstance.dev/operator/pkg/server/servertest"
)

// env is the cluster that all tests of this package share.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	testcluster.Main(m, &env, testcluster.Options{
		// The operator registers at this shard. The other servers run in the process of the tests.
		Shards:        installation.Shards("us-west-2a"),
		OperatorFlags: []string{},
	})
}

// cloud runs the agent of each instance of a server, and announces terminations.
type cloud struct {
	t      testing.TB
	server *servertest.Server
	// metadata is the metadata service of all machines, each below its id.
	metadata *httptest.Server

	mu sync.Mutex
	// notices has the notices by instance.
	notices map[string]string
}

// startCloud runs agents until the end of the test.
func startCloud(t testing.TB, server *servertest.Server) *cloud {
	t.Helper()
	c := &cloud{t: t, server: server, notices: map[string]string{}}
	c.metadata = httptest.NewServer(http.HandlerFunc(c.serve))
	ctx, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(t.Context()), klog.Logger{}))
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
		c.metadata.Close()
	})
	folder := t.TempDir()
	running.Go(func() {
		started := map[string]bool{}
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for id, userdata := range server.Created() {
				if started[id] {
					continue
				}
				started[id] = true
				running.Go(func() { assert.NoError(t, c.run(ctx, filepath.Join(folder, id), id, userdata)) })
			}
		}
	})
	return c
}

// run runs the agent of an instance.
func (c *cloud) run(ctx context.Context, folder, id string, userdata []byte) error {
	o := agent.DefaultOptions()
	o.InstanceID = id
	o.RegistrationAddress, o.AgentAddress = c.server.RegistrationAddr, c.server.AgentAddr
	o.IdentityFolder = filepath.Join(folder, "identity")
	o.KeysFolder, o.ReceiveFolder = filepath.Join(folder, "keys"), filepath.Join(folder, "recv")
	o.Provider, o.MetadataURL = "aws", c.metadata.URL+"/"+id
	if err := os.MkdirAll(o.IdentityFolder, 0o700); err != nil {
		return err
	}
	_, nonce, _ := strings.Cut(string(userdata), " ")
	for name, content := range map[string][]byte{"ca.crt": c.server.Authority.CertificatePEM(), "nonce.jwt": []byte(nonce)} {
		if err := os.WriteFile(filepath.Join(o.IdentityFolder, name), content, 0o600); err != nil {
			return err
		}
	}
	return agent.Run(ctx, o)
}

// serve responds like the metadata service of AWS
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
func (c *cloud) serve(w http.ResponseWriter, r *http.Request) {
	id, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	c.mu.Lock()
	notice, found := c.notices[id]
	c.mu.Unlock()
	switch {
	case r.Method == http.MethodPut:
		_, _ = w.Write([]byte("token"))
	case path != "latest/meta-data/spot/instance-action" || !found:
		http.NotFound(w, r)
	default:
		_, _ = w.Write([]byte(notice))
	}
}

// announce announces the termination of machines at a time.
func (c *cloud) announce(ids []string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.notices[id] = fmt.Sprintf(`{"action": "terminate", "time": %q}`, at.UTC().Format(time.RFC3339))
	}
}
