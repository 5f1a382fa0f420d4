// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// This test uses real servers and connections, and running informers.
func TestInstancesOfServersGetNstanceMachines(t *testing.T) {
	s := startServers(t, "a", "b", "c")
	s.Resize("a", 2)
	s.Resize("b", 1)
	s.Resize("c", 1)
	runtest.Eventually(s.harness.T, "each instance has its NstanceMachine", func() bool { return s.sameAsServers(4) })
	before := s.list()

	s.Resize("b", 3)
	runtest.Eventually(s.harness.T, "each new instance has one too", func() bool { return s.sameAsServers(6) })
	for _, nstanceMachine := range before {
		if after, err := s.controller.nstanceMachines.Get(t.Context(), nstanceMachine.Name, metav1.GetOptions{}); err != nil || after.UID != nstanceMachine.UID {
			t.Errorf("NstanceMachine %s was created again, error %v", nstanceMachine.Name, err)
		}
	}

	// The server terminates the instance; other controllers delete its NstanceMachine.
	selected := s.instances("b")[1]
	s.Resize("b", 2, selected)
	runtest.Eventually(s.harness.T, "the selected instance is terminated", func() bool { return !slices.Contains(s.instances("b"), selected) })
	all := s.list()
	if !slices.ContainsFunc(all, func(nstanceMachine v1beta1.NstanceMachine) bool { return nstanceMachine.Name == selected }) || len(all) != 6 {
		t.Errorf("there are %d NstanceMachines", len(all))
	}
	s.harness.ExpectEvents()
}

// servers are real servers with the group "workers", and a controller that uses them.
type servers struct {
	*shardtest.Servers
	harness    *controllertest.Harness
	controller *Controller
}

func startServers(t *testing.T, ids ...string) *servers {
	t.Helper()
	pool := newPool()
	var options []servertest.Options
	for _, id := range ids {
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(id))
		options = append(options, servertest.Options{Shard: id, Groups: `{"default": {"workers": {"template": "worker", "size": 0}}}`})
	}
	h := controllertest.NewHarness(t, shardtest.New(), pool)
	for _, id := range pool.Spec.Shards {
		require.NoError(t, h.Tracker().Add(newShardGroup(pool, id)))
	}
	s := &servers{Servers: shardtest.StartServers(t, options...), harness: h}
	h.UseServers(s.Servers)
	h.Clock = clock.RealClock{}
	var err error
	s.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	h.Put(h.Informers.MachinePools, newMachinePool())

	runtest.Start(t,
		h.Informers.Nstance.NstanceMachinePools().Informer().RunWithContext,
		h.Informers.Nstance.NstanceShardGroups().Informer().RunWithContext,
		h.Informers.Nstance.NstanceMachines().Informer().RunWithContext,
		s.controller.Run)
	s.Connect()
	s.AwaitReachable()
	return s
}

// instances returns the sorted ids of the instances of a shard.
func (s *servers) instances(id string) []string {
	group, _ := s.Groups.Get(id, "workers")
	var ids []string
	for _, instance := range group.Instances {
		ids = append(ids, instance.ID)
	}
	slices.Sort(ids)
	return ids
}

// list returns the NstanceMachines on the API server.
func (s *servers) list() []v1beta1.NstanceMachine {
	s.harness.T.Helper()
	list, err := s.controller.nstanceMachines.List(s.harness.T.Context(), metav1.ListOptions{})
	require.NoError(s.harness.T, err)
	return list.Items
}

// sameAsServers reports whether there are want NstanceMachines, one for each instance of each
// shard.
func (s *servers) sameAsServers(want int) bool {
	s.harness.T.Helper()
	var listed, names []string
	for id := range s.ByID {
		for _, instance := range s.instances(id) {
			listed = append(listed, id+"/"+instance)
		}
	}
	for _, nstanceMachine := range s.list() {
		owner := controllers.PoolOf(&nstanceMachine)
		if nstanceMachine.Labels[v1beta1.LabelShard] != string(nstanceMachine.Spec.Shard) || nstanceMachine.Labels[v1beta1.LabelGroup] != "workers" ||
			nstanceMachine.Labels[clusterv1.MachinePoolNameLabel] != "workers" || nstanceMachine.Labels[clusterv1.ClusterNameLabel] != controllertest.ClusterName ||
			owner == nil || owner.UID != poolUID || metav1.GetControllerOf(&nstanceMachine) != nil {
			s.harness.T.Errorf("NstanceMachine %+v", nstanceMachine.ObjectMeta)
		}
		names = append(names, strings.Join([]string{string(nstanceMachine.Spec.Shard), nstanceMachine.Name}, "/"))
	}
	slices.Sort(listed)
	slices.Sort(names)
	return len(names) == want && slices.Equal(listed, names)
}
