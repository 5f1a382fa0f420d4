// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestGroupsOfServersAreImported(t *testing.T) {
	options := func(id string, size int) servertest.Options {
		return servertest.Options{
			Shard:  id,
			Groups: fmt.Sprintf(`{"default": {"main": {"template": "worker", "size": %d}}}`, size),
		}
	}
	servers := shardtest.StartServers(t, options("a", 3), options("b", 2))
	a := servers.ByID["a"]
	a.Kill()

	pools := watchPools(t, servers)
	runtest.Eventually(t, "shard a is unreachable and shard b is reachable", func() bool {
		_, lost := servers.Groups.Reachable("a")
		up, _ := servers.Groups.Reachable("b")
		return up && shard.IsUnreachable(lost)
	})
	restarted := options("a", 3)
	restarted.Addr, restarted.Authority = a.Addr, servers.Authority
	a = servertest.Start(t, restarted)
	// A pool that was created without shard a would be of shard b alone.
	pools.expect("create main on [a b]")

	_, err := a.Operator("default").UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: "extra", Config: &nstancev1.GroupConfig{Template: "worker", Size: 1},
	})
	require.NoError(t, err)
	pools.expect("create extra on [a] of worker")

	// The servers' configuration still has the group.
	noFinalizer := []byte(`[{"op": "remove", "path": "/metadata/finalizers"}]`)
	client := pools.InfrastructureV1beta1().NstanceMachinePools(namespace)
	require.NoError(t, client.Delete(t.Context(), "main", metav1.DeleteOptions{}))
	_, err = client.Patch(t.Context(), "main", types.JSONPatchType, noFinalizer, metav1.PatchOptions{})
	require.NoError(t, err)
	pools.expect("main was deleted")
	pools.expect("create main on [a b]")
}

// poolWatch is a running controller, and the pools that it creates.
type poolWatch struct {
	*controllertest.Harness
	changes chan string
}

func watchPools(t *testing.T, servers *shardtest.Servers) *poolWatch {
	t.Helper()
	w := &poolWatch{Harness: controllertest.NewHarness(t, shardtest.New()), changes: make(chan string, 10)}
	w.UseServers(servers)
	c, err := New(w.Dependencies)
	require.NoError(t, err)
	pools := w.Informers.Nstance.NstanceMachinePools().Informer()
	_, err = pools.AddEventHandler(controller.OnChange(w.changed))
	require.NoError(t, err)
	runtest.Start(t, pools.RunWithContext, w.Informers.Nstance.NstanceShardGroups().Informer().RunWithContext, c.Run)
	servers.Connect()
	return w
}

func (w *poolWatch) changed(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case before == nil:
		w.changes <- describe(decision{create: &after.Spec})
	case after == nil:
		w.changes <- before.Name + " was deleted"
	}
}

// expect waits for the next pool that is created or deleted.
func (w *poolWatch) expect(want string) {
	w.T.Helper()
	select {
	case got := <-w.changes:
		require.Equal(w.T, want, got)
	case <-time.After(runtest.Timeout):
		w.T.Fatalf("after %s no change, want %q", runtest.Timeout, want)
	}
}
