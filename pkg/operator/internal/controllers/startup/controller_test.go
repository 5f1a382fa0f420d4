// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package startup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

type harness struct {
	*controllertest.Harness
	controller *Controller
}

// newHarness returns a controller that has received the existing instances of shard "a".
func newHarness(t *testing.T, existing ...shard.Instance) *harness {
	t.Helper()
	h := &harness{Harness: controllertest.NewHarness(t, shardtest.New("a"))}
	var err error
	h.controller, err = New(h.Dependencies)
	require.NoError(t, err)
	h.report(existing...)
	h.Fake.NotifyShard("a")
	return h
}

// report makes the shard report instances.
func (h *harness) report(instances ...shard.Instance) {
	h.Fake.SetGroup("a", shard.Group{Key: "workers", ListsInstances: true, Instances: instances})
	h.Fake.NotifyGroup("a", "workers")
}

// node puts a Node into the cache and calls the handler.
func (h *harness) node(id string, ready corev1.ConditionStatus) {
	h.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: id}}
	node.Spec.ProviderID = "kwok://a/" + id
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	h.Put(h.Informers.Nodes, node)
	h.controller.nodeChanged(nil, node)
}

// expectSum compares the number and the sum of the observations of a stage.
func (h *harness) expectSum(stage string, count uint64, sum time.Duration) {
	h.T.Helper()
	families, err := h.Registry().Gather()
	require.NoError(h.T, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[1].GetValue() == stage {
				assert.Equal(h.T, count, metric.GetHistogram().GetSampleCount(), "observations of %s", stage)
				assert.InDelta(h.T, sum.Seconds(), metric.GetHistogram().GetSampleSum(), 0, "sum of %s", stage)
				return
			}
		}
	}
	assert.Zero(h.T, count, "observations of %s", stage)
}

func pending(id string) shard.Instance { return shard.Instance{ID: id, State: shard.InstancePending} }

func running(id string) shard.Instance {
	return shard.Instance{ID: id, State: shard.InstanceRunning, ProviderID: "kwok://a/" + id}
}

func TestStagesAreMeasuredSinceTheFirstReport(t *testing.T) {
	h := newHarness(t)
	h.report(pending("i1"))
	h.Advance(20 * time.Second)
	h.report(pending("i1"), pending("i2"))
	h.expectSum(stageRunning, 0, 0)
	h.Advance(10 * time.Second)
	h.report(running("i1"), pending("i2"))
	h.expectSum(stageRunning, 1, 30*time.Second)
	h.Advance(10 * time.Second)
	h.node("i1", corev1.ConditionFalse)
	h.node("i2", corev1.ConditionTrue)
	h.expectSum(stageNodeReady, 0, 0)
	h.Advance(10 * time.Second)
	for range 2 {
		h.node("i1", corev1.ConditionTrue)
		h.report(running("i1"), pending("i2"))
	}
	h.expectSum(stageNodeReady, 1, 50*time.Second)
	h.report(running("i1"), running("i2"))
	h.expectSum(stageRunning, 2, 60*time.Second)
	h.expectSum(stageNodeReady, 2, 80*time.Second)
	assert.Empty(t, h.controller.waiting)

	h.node("i3", corev1.ConditionFalse)
	h.report(running("i1"), running("i2"), running("i3"))
	h.expectSum(stageRunning, 3, 60*time.Second)
	h.expectSum(stageNodeReady, 2, 80*time.Second)
	h.Advance(5 * time.Second)
	h.node("i3", corev1.ConditionTrue)
	h.expectSum(stageNodeReady, 3, 85*time.Second)
}

// The time of the request is known only for instances that appear while the shard is
// connected.
func TestInstancesThatExistedAreNotMeasured(t *testing.T) {
	h := newHarness(t, pending("i1"), running("i2"))
	h.report(running("i1"), running("i2"))
	h.Fake.Update(func() { h.Fake.ByID["a"].Reachable = false })
	h.Fake.NotifyShard("a")
	h.report(running("i1"), running("i2"), pending("created-meanwhile"))
	h.Fake.Update(func() { h.Fake.ByID["a"].Reachable = true })
	h.Fake.NotifyShard("a")
	h.report(running("i1"), running("i2"), running("created-meanwhile"))
	for _, id := range []string{"i1", "i2", "created-meanwhile"} {
		h.node(id, corev1.ConditionTrue)
	}
	h.expectSum(stageRunning, 0, 0)
	h.expectSum(stageNodeReady, 0, 0)
}

func TestNothingIsKeptOfInstancesThatWereDeleted(t *testing.T) {
	h := newHarness(t)
	h.report(running("i1"), running("i2"))
	assert.Len(t, h.controller.waiting, 2)
	h.report(running("i2"))
	assert.Len(t, h.controller.waiting, 1)
	h.node("i1", corev1.ConditionTrue)
	h.expectSum(stageNodeReady, 0, 0)
	h.Fake.Update(func() { delete(h.Fake.ByID, "a") })
	h.Fake.NotifyShard("a")
	assert.Empty(t, h.controller.waiting)
	assert.Empty(t, h.controller.known)
}

// Prometheus cannot compute a rate from a missing value: the first instances after a start of
// the operator would not be measured.
func TestTheMetricsOfAShardExistBeforeItsFirstInstance(t *testing.T) {
	h := newHarness(t)
	h.ExpectSeries(
		`nstance_operator_instance_startup_duration_seconds{shard="a",stage="node_ready"} 0`,
		`nstance_operator_instance_startup_duration_seconds{shard="a",stage="running"} 0`,
	)
	h.Fake.Update(func() { delete(h.Fake.ByID, "a") })
	h.Fake.NotifyShard("a")
	h.ExpectSeries()
}
