// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
)

// namelessIDs are shards whose servers do not name them.
var namelessIDs = []string{"us-west-3a", "us-west-3b", "us-west-3c"}

// startNameless starts the server of a shard, whose instances are Nodes of the cluster.
func startNameless(t *testing.T, shard string) *servertest.Server {
	t.Helper()
	return servertest.Start(t, servertest.Options{
		Cluster: installation.ClusterID, Shard: shard, Nameless: true, Authority: env.Installation.Authority(), Kubernetes: env.Kube,
	})
}

// changes returns how many calls that change something a server has received.
func changes(server *servertest.Server) int {
	return len(server.Calls("UpsertGroup", "DeleteGroup", "CreateInstance", "DeleteInstance", "AcknowledgeDrained", "RenewCertificate"))
}

// A wrong address is noticed without the help of the server's certificate: by the
// instances that the operator knows, also after a restart.
func TestWrongShardOfServersThatNameNone(t *testing.T) {
	const name = "nameless"
	o := runFaultyOperator(t)
	t.Cleanup(env.SaveConfigMap(t, "nstance-shards"))
	servers := map[string]*servertest.Server{}
	for _, id := range namelessIDs {
		servers[id] = startNameless(t, id)
	}
	a, b, c := namelessIDs[0], namelessIDs[1], namelessIDs[2]
	connect := func(t *testing.T, servers map[string]*servertest.Server) {
		t.Helper()
		env.EditShards(t, func(data map[string]string) {
			for id, server := range servers {
				data[id] = server.Addr
			}
		})
	}
	connect(t, servers)
	replacement := startNameless(t, "us-west-3d")
	replicas := int32(7)
	pool := testcluster.NewNstanceMachinePool(name, namelessIDs...)
	pool.Spec.Machines = v1beta1.MachinesAlways
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	t.Cleanup(func() { env.DeletePools(t, name) })
	env.UntilRunning(t, name, replicas)

	from := env.AuditEnd(t)
	expectNoDeletion := func(t *testing.T) {
		t.Helper()
		if deletions := env.Requests(t, from, testcluster.IsDeletion); len(deletions) > 0 {
			t.Errorf("%d deletions:%s", len(deletions), testcluster.Describe(deletions))
		}
	}
	t.Run("addresses are swapped", func(t *testing.T) {
		before := map[string]int{a: changes(servers[a]), b: changes(servers[b]), c: changes(servers[c])}
		connect(t, map[string]*servertest.Server{a: servers[c], c: servers[a]})
		untilPoolUnreachable(t, name, v1beta1.ReasonWrongShard)
		// Without a cache of the time before.
		o.restart(t)
		untilPoolUnreachable(t, name, v1beta1.ReasonWrongShard)
		replicas += 3
		env.Scale(t, name, replicas)
		testcluster.Eventually(t, time.Minute, "shard "+b+" grows", func(context.Context) error {
			if changes(servers[b]) == before[b] {
				return errors.New("no call")
			}
			return nil
		})
		expectNoDeletion(t)
		assert.Equal(t, before[a], changes(servers[a]), "calls to the server of "+a)
		assert.Equal(t, before[c], changes(servers[c]), "calls to the server of "+c)
		connect(t, servers)
		env.UntilRunning(t, name, replicas)
		expectNoDeletion(t)
	})
	t.Run("another server is confirmed", func(t *testing.T) {
		servers[a].Stop()
		connect(t, map[string]*servertest.Server{a: replacement})
		untilPoolUnreachable(t, name, v1beta1.ReasonWrongShard)
		expectNoDeletion(t)
		assert.Zero(t, changes(replacement))
		_, err := env.Kube.CoreV1().ConfigMaps(installation.Namespace).Patch(t.Context(), "nstance-shards", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.AnnotationConfirmedAddress+a, replacement.Addr), metav1.PatchOptions{})
		require.NoError(t, err)
		env.UntilRunning(t, name, replicas)
		assert.NotZero(t, changes(replacement))
	})
}
