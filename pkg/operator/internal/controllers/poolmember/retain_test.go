// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

const (
	pauseM1   = `PATCH machines/i-1 {"metadata":{"annotations":{"cluster.x-k8s.io/paused":""},"uid":"uid-of-machine-i-1"}}`
	deleteM1  = `DELETE machines/i-1 {"kind":"DeleteOptions","apiVersion":"cluster.x-k8s.io/v1beta2","preconditions":{"uid":"uid-of-machine-i-1"}}`
	releaseM1 = `PATCH machines/i-1 [{"op":"test","path":"/metadata/uid","value":"uid-of-machine-i-1"},{"op":"test","path":"/metadata/finalizers/0","value":"machine.cluster.x-k8s.io"},{"op":"remove","path":"/metadata/finalizers/0"}]`
)

// newRetained returns a harness whose pool and MachinePool are being deleted with a policy.
// The pool has instance i-1.
func newRetained(t *testing.T, policy v1beta1.DeletionPolicy) *harness {
	t.Helper()
	pool := controllertest.Deleting(newPool("a"))
	pool.Spec.DeletionPolicy = policy
	objects := []runtime.Object{pool, newShardGroup(pool, "a"), stored("i-1")}
	h := newHarness(t, byShard{"a": running("i-1")}, objects...)
	h.Put(h.Informers.MachinePools, controllertest.Deleting(newMachinePool()))
	return h
}

func machineOfClusterAPI() *clusterv1.Machine {
	machine := newMachine("i-1")
	machine.Finalizers = []string{clusterv1.MachineFinalizer}
	return machine
}

// changes syncs the pool once and returns the writes of Cluster API's kinds.
func (h *harness) changes() []string {
	h.T.Helper()
	h.show()
	_, err := h.controller.sync(h.Ctx, controllertest.Key("workers"))
	require.NoError(h.T, err)
	changed := h.CAPI.Changed
	h.CAPI.Changed = nil
	return changed
}

// The Machine is paused before it is deleted, so that Cluster API neither drains nor deletes
// its Node.
func TestRetainedMachinesAreReleased(t *testing.T) {
	h := newRetained(t, v1beta1.DeletionRetain)
	h.addMachines(machineOfClusterAPI())
	assert.Equal(t, []string{pauseM1, deleteM1, releaseM1}, h.changes())
	assert.Empty(t, h.Writes(), "the NstanceMachine is deleted after its Machine")

	paused := controllertest.Deleting(machineOfClusterAPI())
	paused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	h.machines["i-1"] = paused
	assert.Equal(t, []string{releaseM1}, h.changes())
	delete(h.machines, "i-1")
	h.CAPI.Created = nil
	assert.Empty(t, h.changes())
	assert.Equal(t, []string{"delete nstancemachines i-1"}, h.Writes())
}

// The drain of a Machine that is being deleted stops.
func TestRetainedMachineThatIsBeingDeleted(t *testing.T) {
	h := newRetained(t, v1beta1.DeletionRetain)
	h.addMachines(controllertest.Deleting(machineOfClusterAPI()))
	assert.Equal(t, []string{pauseM1, releaseM1}, h.changes())
}

func TestPausedPoolReleasesNothing(t *testing.T) {
	h := newRetained(t, v1beta1.DeletionRetain)
	h.addMachines(machineOfClusterAPI())
	paused := controllertest.Deleting(newMachinePool())
	paused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	require.NotEmpty(t, controllers.PausedBy(nil, paused))
	h.Put(h.Informers.MachinePools, paused)
	assert.Empty(t, h.changes())
}

// With the default policy, Machines are deleted as usual.
func TestMachinesOfADeletedPoolAreNotReleasedByDefault(t *testing.T) {
	for _, policy := range []v1beta1.DeletionPolicy{"", v1beta1.DeletionDelete} {
		h := newRetained(t, policy)
		h.addMachines(machineOfClusterAPI())
		assert.Equal(t, []string{deleteM1}, h.changes())
	}
}
