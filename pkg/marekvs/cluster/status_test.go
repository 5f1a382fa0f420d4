// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	manifests "nstance.dev/operator/manifests/marekvs"
	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/scale"
)

func demo() *v1alpha1.MarekvsCluster {
	return &v1alpha1.MarekvsCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "1", Generation: 7},
		Spec:       v1alpha1.MarekvsClusterSpec{Image: "i", Nodes: 3, ReplicationFactor: 2},
	}
}

// done returns the result of a sync of a healthy cluster of 3 nodes, after change.
func done(nodes int32, change func(*scale.Observation)) *syncResult {
	o := &scale.Observation{Name: "demo", ReplicationFactor: 2, Replicas: 3, StatusReplicas: 3, Current: true, TemplateCurrent: true,
		CurrentRevision: "1", UpdateRevision: "1", SinceChange: time.Hour}
	for ordinal := range int32(3) {
		o.Pods = append(o.Pods, scale.Pod{Ordinal: ordinal, Ready: true, Revision: "1", Rounds: ptr.To[int64](3), QuietRounds: ptr.To[int64](3), Sample: &scale.Sample{Underreplicated: ptr.To[int64](0)}})
	}
	if change != nil {
		change(o)
	}
	load := &scale.Load{Rate: ptr.To(4231.0), Complete: true}
	wanted := &scale.Wanted{Nodes: nodes, ReplicationFactor: 2}
	result := &syncResult{observed: o, load: load, decision: scale.Decide(wanted, o, load, nil)}
	result.replicas = result.decision.Step.Replicas
	return result
}

func reason(status v1alpha1.MarekvsClusterStatus, kind string) string {
	condition := meta.FindStatusCondition(status.Conditions, kind)
	if condition == nil {
		return "missing"
	}
	return string(condition.Status) + " " + condition.Reason
}

// A cluster is healthy and ready only when nothing is wrong, and each problem has a phase and
// a reason.
func TestPhases(t *testing.T) {
	unready := func(o *scale.Observation) { o.Pods[1].Ready = false }
	silent := func(o *scale.Observation) { o.Pods[1].Sample = nil }
	under := func(o *scale.Observation) { o.Pods[1].Sample.Underreplicated = ptr.To[int64](5) }
	for name, c := range map[string]struct {
		result    *syncResult
		autoscale bool
		phase     v1alpha1.Phase
		ready     string
		message   string
	}{
		"healthy":                    {result: done(3, nil), phase: "Healthy", ready: "True AsExpected", message: "at target 3"},
		"not ready":                  {result: done(3, unready), phase: "Reconciling", ready: "False NotAllReady", message: "2 of 3 pods ready"},
		"no metrics":                 {result: done(3, silent), phase: "Reconciling", ready: "False MetricsUnavailable", message: "metrics unreachable (2 of 3 pods scraped)"},
		"no metrics, autoscaled":     {result: done(3, silent), autoscale: true, phase: "Blocked", ready: "False MetricsUnavailable", message: "the size is kept: metrics unreachable (2 of 3 pods scraped)"},
		"under-replicated":           {result: done(3, under), phase: "Reconciling", ready: "False Underreplicated", message: "5 partitions under-replicated"},
		"growth":                     {result: done(5, nil), phase: "ScalingUp", ready: "False ScalingUp", message: "replicas 3 -> 5 (target 5)"},
		"growth without metrics":     {result: done(5, silent), phase: "ScalingUp", ready: "False ScalingUp", message: "replicas 3 -> 5 (target 5)"},
		"the template has changed":   {result: done(3, func(o *scale.Observation) { o.TemplateCurrent = false }), phase: "Reconciling", ready: "False RollingOut", message: "pods are being updated, and the next Pod waits: the template has changed"},
		"the update is not observed": {result: done(3, func(o *scale.Observation) { o.Current = false }), phase: "Reconciling", ready: "False RollingOut", message: "pods are being updated, and the next Pod waits: the StatefulSet controller has not observed the template"},
		"an updated Pod fails": {result: done(3, func(o *scale.Observation) {
			o.UpdateRevision, o.Partition = "2", 2
			o.Pods[2] = scale.Pod{Ordinal: 2, Revision: "2", Failing: "ErrImagePull"}
		}), phase: "Blocked", ready: "False RolloutHalted", message: "rollout halted: the updated pod demo-2 fails: ErrImagePull"},
	} {
		cluster := demo()
		if c.autoscale {
			cluster.Spec.Autoscale = &v1alpha1.Autoscale{}
		}
		status := newStatus(cluster, c.result, nil)
		assert.Equal(t, c.phase, status.Phase, name)
		assert.Equal(t, c.message, status.Message, name)
		assert.Equal(t, c.ready, reason(status, "Ready"), name)
		condition := meta.FindStatusCondition(status.Conditions, "Ready")
		assert.Equal(t, "The phase is "+string(c.phase)+": "+c.message+".", condition.Message, name)
		assert.Equal(t, int64(7), condition.ObservedGeneration, name)
	}
}

// Each failure blocks a removal visibly. Waiting for the last change is not shown as
// blocked.
func TestPhasesOfRemovals(t *testing.T) {
	four := func(change func(*scale.Observation)) func(*scale.Observation) {
		return func(o *scale.Observation) {
			o.Replicas, o.StatusReplicas = 4, 4
			o.Pods = append(o.Pods, scale.Pod{Ordinal: 3, Ready: true, Revision: "1", Rounds: ptr.To[int64](3), QuietRounds: ptr.To[int64](3), Sample: &scale.Sample{Underreplicated: ptr.To[int64](0)}})
			if change != nil {
				change(o)
			}
		}
	}
	for name, c := range map[string]struct {
		change                func(*scale.Observation)
		phase                 v1alpha1.Phase
		message, block, ready string
	}{
		"safe": {nil, "ScalingDown", "replicas 4 -> 3 (target 3)", "False AsExpected", "False ScalingDown"},
		"no metrics": {func(o *scale.Observation) { o.Pods[0].Sample = nil }, "Blocked",
			"scale-down to 3 deferred: metrics unreachable (3 of 4 pods scraped)", "True MetricsUnavailable", "False MetricsUnavailable"},
		"under-replicated": {func(o *scale.Observation) { o.Pods[0].Sample.Underreplicated = ptr.To[int64](9) }, "Blocked",
			"scale-down to 3 deferred: 9 partitions under-replicated", "True Underreplicated", "False Underreplicated"},
		"not ready": {func(o *scale.Observation) { o.Pods[0].Ready = false }, "Blocked",
			"scale-down to 3 deferred: 3 of 4 pods ready", "True NotAllReady", "False NotAllReady"},
		"waiting": {func(o *scale.Observation) { o.SinceChange, o.Settle = 0, time.Minute }, "ScalingDown",
			"scale-down to 3 waits: the nodes changed less than 1m0s ago", "False AsExpected", "False Settling"},
	} {
		status := newStatus(demo(), done(3, four(c.change)), nil)
		assert.Equal(t, c.phase, status.Phase, name)
		assert.Equal(t, c.message, status.Message, name)
		assert.Equal(t, c.block, reason(status, "ScaleDownBlocked"), name)
		assert.Equal(t, c.ready, reason(status, "Ready"), name)
	}
}

func TestStatusHasNoOldValues(t *testing.T) {
	cluster := demo()
	cluster.Status = newStatus(cluster, done(3, nil), nil)
	assert.Equal(t, int64(7), cluster.Status.ObservedGeneration)
	assert.Equal(t, ptr.To[int64](0), cluster.Status.UnderreplicatedPartitions)
	assert.Equal(t, "4231.0", cluster.Status.OpsPerSecond)
	assert.Equal(t, "app=demo,app.kubernetes.io/instance=demo,app.kubernetes.io/managed-by=marekvs-operator,app.kubernetes.io/name=marekvs", cluster.Status.Selector)
	for _, kind := range []string{"Ready", "Available", "MetricsAvailable", "RolledOut", "Owned", "Reconciled"} {
		assert.Equal(t, "True AsExpected", reason(cluster.Status, kind), kind)
	}
	silent := done(3, func(o *scale.Observation) { o.Pods[0].Sample = nil })
	silent.load.Complete = false
	status := newStatus(cluster, silent, nil)
	assert.Nil(t, status.UnderreplicatedPartitions)
	assert.Empty(t, status.OpsPerSecond)
	assert.Equal(t, "False MetricsUnavailable", reason(status, "MetricsAvailable"))
}

// A cluster of which a write failed is not ready, whatever its phase.
func TestErrorsAreOnTheStatus(t *testing.T) {
	status := newStatus(demo(), &syncResult{}, &notOwnedError{"Service", "demo"})
	assert.Equal(t, "False NameConflict", reason(status, "Owned"))
	assert.Equal(t, "False NameConflict", reason(status, "Reconciled"))
	assert.Equal(t, "False NameConflict", reason(status, "Ready"))
	assert.Contains(t, status.Message, "Service demo")
	status = newStatus(demo(), done(3, nil), errors.New("forbidden"))
	assert.Equal(t, "False ApplyFailed", reason(status, "Reconciled"))
	assert.Equal(t, "False ApplyFailed", reason(status, "Ready"))
	assert.Equal(t, "True AsExpected", reason(status, "Owned"))
	status = newStatus(demo(), done(3, nil), &reclaimError{"data-demo-5", errors.New("forbidden")})
	assert.Equal(t, "False DeleteFailed", reason(status, "Reconciled"))
	assert.Equal(t, "False DeleteFailed", reason(status, "Ready"))
	assert.Equal(t, v1alpha1.PhaseHealthy, status.Phase)
	assert.Equal(t, "delete volume claim data-demo-5: forbidden", meta.FindStatusCondition(status.Conditions, "Ready").Message)
}

func TestAClusterIsNotReadyWhileItIsCreated(t *testing.T) {
	for name, result := range map[string]*syncResult{
		"created just now":                 {created: true, replicas: 3},
		"the StatefulSet is being deleted": {},
	} {
		assert.Equal(t, "False Creating", reason(newStatus(demo(), result, nil), "Ready"), name)
	}
	h := newEmpty(t, nil)
	h.step()
	assert.Equal(t, "False Creating", reason(h.cluster().Status, "Ready"))
	h.settle()
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, "Ready"))
	h.change(sized(4))
	h.step()
	assert.Equal(t, "False ScalingUp", reason(h.cluster().Status, "Ready"))
	h.settle()
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, "Ready"))
}

// A loaded cluster is not written at every sync.
// Otherwise an error could make every write of the status fail.
func TestALongErrorIsCut(t *testing.T) {
	status := newStatus(demo(), &syncResult{}, errors.New(strings.Repeat("x", v1alpha1.MaxMessage+1)))
	assert.LessOrEqual(t, len(status.Message), v1alpha1.MaxMessage)
}

func TestTheRateIsPublishedWhenItDiffers(t *testing.T) {
	rate := func(value float64) *scale.Load { return &scale.Load{Rate: &value, Complete: true} }
	assert.Equal(t, "100.0", publishedRate("", rate(100)))
	assert.Equal(t, "100.0", publishedRate("100.0", rate(104)))
	assert.Equal(t, "110.0", publishedRate("100.0", rate(110)))
	assert.Equal(t, "0.0", publishedRate("100.0", rate(0)))
}

func TestAvailable(t *testing.T) {
	unready := func(count int) *syncResult {
		return done(3, func(o *scale.Observation) {
			for i := range count {
				o.Pods[i].Ready = false
			}
		})
	}
	assert.Equal(t, "True NotAllReady", reason(newStatus(demo(), unready(1), nil), "Available"), "the other copy is ready")
	assert.Equal(t, "False NotAllReady", reason(newStatus(demo(), unready(2), nil), "Available"))
}

// Progressing is true while the size or the Pods are to change, and says why.
func TestProgressing(t *testing.T) {
	for name, c := range map[string]struct {
		result *syncResult
		want   string
	}{
		"at its size": {done(3, nil), "False AsExpected "},
		"not ready":   {done(3, func(o *scale.Observation) { o.Pods[1].Ready = false }), "False AsExpected "},
		"growth":      {done(5, nil), "True ScaledUp Scaling from 3 to 5 nodes."},
		"removal": {done(3, func(o *scale.Observation) {
			o.Replicas, o.StatusReplicas = 4, 4
			o.Pods = append(o.Pods, scale.Pod{Ordinal: 3, Ready: true, Revision: "1", Rounds: ptr.To[int64](3), QuietRounds: ptr.To[int64](3), Sample: &scale.Sample{Underreplicated: ptr.To[int64](0)}})
		}), "True ScaledDown Scaling from 4 to 3 nodes."},
		"a removal is blocked": {done(3, func(o *scale.Observation) { o.Replicas, o.StatusReplicas = 4, 4 }),
			"True MetricsUnavailable metrics unreachable (3 of 4 pods scraped)."},
		"update": {done(3, func(o *scale.Observation) { o.TemplateCurrent = false }), "True RollingOut Pods are being updated, and the next Pod waits: the template has changed."},
		"the update is halted": {done(3, func(o *scale.Observation) {
			o.UpdateRevision, o.Partition = "2", 2
			o.Pods[2] = scale.Pod{Ordinal: 2, Revision: "2", Failing: "ErrImagePull"}
		}), "False AsExpected "},
	} {
		status := newStatus(demo(), c.result, nil)
		condition := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgressing)
		if assert.NotNil(t, condition, name) {
			assert.Equal(t, c.want, string(condition.Status)+" "+condition.Reason+" "+condition.Message, name)
			assert.Equal(t, int64(7), condition.ObservedGeneration, name)
		}
	}
}

// scalePaths returns the paths of the scale subresource in the CustomResourceDefinition.
func scalePaths(t *testing.T) (spec, status, selector []string) {
	t.Helper()
	var definition apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.UnmarshalStrict(manifests.CRD, &definition))
	scale := definition.Spec.Versions[0].Subresources.Scale
	require.NotNil(t, scale)
	require.NotNil(t, scale.LabelSelectorPath)
	split := func(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }
	return split(scale.SpecReplicasPath), split(scale.StatusReplicasPath), split(*scale.LabelSelectorPath)
}

// content returns the cluster as the API server stores it.
func (h *harness) content() map[string]any {
	h.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(h.cluster())
	require.NoError(h.t, err)
	return content
}

// The API server serves the scale subresource from the paths in the definition
// (https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#scale-subresource).
// GET returns the number of nodes and the selector of their Pods, which a
// HorizontalPodAutoscaler reads. PATCH sets the wanted size.
func TestTheScaleSubresourceServesTheStatus(t *testing.T) {
	specPath, statusPath, selectorPath := scalePaths(t)
	h := newHarness(t, sized(4))
	check := func(wanted int64) {
		t.Helper()
		content := h.content()
		served, found, err := unstructured.NestedInt64(content, specPath...)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, wanted, served, "spec.replicas")
		served, found, err = unstructured.NestedInt64(content, statusPath...)
		require.NoError(t, err)
		assert.True(t, found)
		assert.Equal(t, int64(*h.set().Spec.Replicas), served, "status.replicas")
		text, _, err := unstructured.NestedString(content, selectorPath...)
		require.NoError(t, err)
		selector, err := labels.Parse(text)
		require.NoError(t, err)
		require.NotEmpty(t, h.pods())
		for _, pod := range h.pods() {
			assert.True(t, selector.Matches(labels.Set(pod.Labels)), pod.Name)
		}
		assert.False(t, selector.Matches(labels.Set{"app": "demo"}), "it selects no Pod of an application of the same name")
		assert.False(t, selector.Empty())
	}
	check(4)
	for _, size := range []int64{6, 3} {
		content := h.content()
		require.NoError(t, unstructured.SetNestedField(content, size, specPath...))
		changed := &v1alpha1.MarekvsCluster{}
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(content, changed))
		h.kinds.Update(clusterResource, changed)
		for range 40 {
			h.step()
			check(size)
			h.advance(period)
		}
		assert.Equal(t, int32(size), *h.set().Spec.Replicas)
	}
}
