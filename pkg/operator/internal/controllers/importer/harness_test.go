// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// Resource versions of the caches and of a created pool: before, at and after its creation.
const (
	firstVersion   = "500"
	createdVersion = "1000"
	shownVersion   = "2000"
)

// harness is a controller that imports the groups of shards.
type harness struct {
	*controllertest.Harness
	controller *Controller
	// rejection is the error of creating a pool; it may be nil.
	rejection error
}

func newHarness(t *testing.T, shards map[string]*shardtest.Shard, objects ...runtime.Object) *harness {
	t.Helper()
	fake := shardtest.New()
	fake.ByID = shards
	h := &harness{Harness: controllertest.NewHarness(t, fake, objects...)}
	h.SyncKey = func() (time.Duration, error) { return h.controller.sync(h.Ctx, controllertest.Key("main")) }
	h.PrependReactor("create", "nstancemachinepools", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if h.rejection != nil {
			return true, nil, h.rejection
		}
		created := action.(clienttesting.CreateActionImpl)
		pool := created.Object.(*v1beta1.NstanceMachinePool)
		pool.ResourceVersion = createdVersion
		return true, pool, h.Tracker().Create(created.GetResource(), pool, controllertest.Namespace)
	})
	var err error
	h.controller, err = New(h.Dependencies, Options{Delay: delay})
	require.NoError(t, err)
	assert.Len(t, h.controller.HasSynced(), 4, "one handler per informer")
	h.show(firstVersion)
	return h
}

// show makes the caches equal to the API server at a resource version.
func (h *harness) show(version string) {
	h.T.Helper()
	h.Show()
	pools := h.Informers.Nstance.NstanceMachinePools().Informer().GetIndexer()
	require.NoError(h.T, pools.Replace(pools.List(), version))
}

// expect syncs the group "main" once, which must succeed, and compares the writes.
func (h *harness) expect(want ...string) {
	h.T.Helper()
	got, requeue, err := h.SyncStale()
	require.NoError(h.T, err)
	if !slices.Equal(got, want) || requeue != 0 {
		h.T.Errorf("wrote %q and requeued after %s, want %q", got, requeue, want)
	}
}

func (h *harness) pool(name string) *v1beta1.NstanceMachinePool {
	return controllertest.Get[*v1beta1.NstanceMachinePool](h.API, name)
}

const (
	namespace   = controllertest.Namespace
	clusterName = controllertest.ClusterName
)

// newPool returns a pool of a group on shards.
func newPool(name string, group v1beta1.Identifier, shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: group, Shards: shards},
	}
}

// up returns a shard that is connected and synced.
func up(groups ...shard.Group) *shardtest.Shard {
	return unknown(true, true, groups...)
}

// unknown returns a shard whose groups are not known, because it is not synced or not
// reachable.
func unknown(synced, reachable bool, groups ...shard.Group) *shardtest.Shard {
	state := shardtest.NewShard()
	state.Synced, state.Reachable = synced, reachable
	for _, group := range groups {
		state.Groups[group.Key] = group
	}
	return state
}

// Shards report the group "main".
func static(size int32) shard.Group {
	return shard.Group{
		Key: "main", Size: size, GroupSettings: shard.GroupSettings{Template: "server", InstanceType: "large", Subnets: []string{"private"},
			Vars: map[string]string{"a": "1"}}, Static: true,
	}
}

func dynamic(template string) shard.Group {
	group := static(1)
	group.Static, group.Template = false, template
	return group
}

func deleting(group shard.Group) shard.Group {
	group.Deleting = true
	return group
}

// anotherCluster returns the Cluster of another operator.
func anotherCluster() *clusterv1.Cluster {
	cluster := controllertest.NewCluster()
	cluster.Name = "another"
	return cluster
}
