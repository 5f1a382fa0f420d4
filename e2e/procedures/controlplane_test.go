// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/servertest"
)

// The API server is away with the instances of a static group, and the operator reverts what
// nstance-admin sets. The configuration of the servers brings the instances back, and they stay.
func TestControlPlaneWasScaledAway(t *testing.T) {
	const pool = "control-plane"
	servers := newServers(t)
	configure := func(minSize int) {
		for _, server := range servers {
			server.SetConfig(func(o *servertest.Options) {
				o.Groups = fmt.Sprintf(`{%q: {%q: {"template": "worker", "size": 1, "limits": {"min_size": %d}}}}`, installation.Tenant, pool, minSize)
			})
		}
	}
	configure(0)
	t.Cleanup(func() {
		for _, server := range servers {
			server.SetConfig(func(o *servertest.Options) { o.Groups = "" })
		}
		untilStatic(t, pool, false)
		env.DeletePools(t, pool)
	})
	untilSizes(t, pool, 1, 1)
	before := servers.instances(t)
	env.Scale(t, pool, 0)
	servers.untilInstances(t, 0)
	apiServer, operator := env.Component(controlplane.APIServer), env.OperatorProcess()
	testcluster.Stop(t, apiServer)
	testcluster.UntilExited(t, operator)

	p := env.StartProcedure(t, "A control plane that was scaled away", map[string]string{
		"NAMESPACE": installation.Namespace,
		"POOL":      pool,
		"REPLICAS":  "2",
		"SHARDS":    strings.Join(shardIDs, " "),
	})
	p.Do("In copies of the objects", func() {
		for id, server := range servers {
			text, err := os.ReadFile(server.ConfigPath())
			require.NoError(t, err)
			edited := strings.ReplaceAll(string(text), `"min_size": 0`, `"min_size": 1`)
			require.NotEqual(t, string(text), edited)
			require.NoError(t, os.WriteFile(filepath.Join(p.Dir(), id+".jsonc"), []byte(edited), 0o600))
		}
	})
	p.Run("Check the copies")
	p.Do("Replace the objects with the copies", func() {
		configure(1)
		servers.untilInstances(t, 2)
		testcluster.Start(t, apiServer)
		// A Deployment starts it again.
		testcluster.Start(t, operator)
	})
	created := servers.instances(t)
	p.Run("Wait until the API server answers")
	p.Run("Set the replicas")

	untilSizes(t, pool, 1, 1)
	assert.Equal(t, created, servers.instances(t), "the instances that the configuration has brought back")
	assert.NotSubset(t, created, before)
}
