// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// A drain that a budget blocks delays no other one. It continues when the budget allows
// it. A Pod that terminates slowly is waited for.
func TestBlockedDrains(t *testing.T) {
	t.Parallel()
	const name = "blocked"
	others := tier.Pick(20, 50)
	nodes := createGroup(t, steadyShard, name, int32(others+2))
	env.CreateNamespace(t, name)
	var pods []*corev1.Pod
	for i, node := range nodes {
		pods = append(pods, newPod(name, fmt.Sprintf("pod-%d", i), node))
	}
	released, slow := pods[0], pods[1]
	slow.Finalizers = []string{testFinalizer}
	createPods(t, pods...)
	protect(t, name, released.Name)
	isOther := func(d *drain) bool {
		return d.Group == name && !slices.Contains(nodes[:2], d.Instance)
	}

	from := env.AuditEnd(t)
	env.Scale(t, name, 0)
	testcluster.Eventually(t, timeout, "the others are acknowledged", func(context.Context) error {
		acknowledged := 0
		for _, d := range env.drains[steadyShard].matching(isOther) {
			if len(d.Acknowledged) > 0 {
				acknowledged++
			}
		}
		if acknowledged < others {
			return fmt.Errorf("%d of %d", acknowledged, others)
		}
		return nil
	})
	for _, d := range env.drains[steadyShard].matching(isOther) {
		expectValidAcknowledgement(t, d)
		if writes := env.OperatorRequests(t, from, isCordon(d.Instance)); len(writes) == 0 {
			t.Errorf("Node %s was not cordoned", d.Instance)
		}
	}
	testcluster.Eventually(t, timeout, "the Node with the protected Pod is cordoned", func(ctx context.Context) error {
		return cordoned(ctx, released.Spec.NodeName, steadyShard+"/"+released.Spec.NodeName)
	})
	if d, _ := env.drains[steadyShard].ofInstance(released.Spec.NodeName); len(d.Acknowledged) > 0 {
		t.Errorf("the blocked drain of %s was acknowledged", d.Instance)
	}
	testcluster.Eventually(t, timeout, "the shard group reports what blocks", func(ctx context.Context) error {
		condition, err := progress(ctx, steadyShard, name)
		if err == nil && (condition.Status != metav1.ConditionFalse || condition.Reason != v1beta1.ReasonDrainBlocked || !namesBlocker(condition.Message, released)) {
			err = fmt.Errorf("condition %+v", condition)
		}
		return err
	})

	if d, _ := env.drains[steadyShard].ofInstance(slow.Spec.NodeName); len(d.Acknowledged) > 0 {
		t.Errorf("the drain of %s was acknowledged before its Pod had terminated", d.Instance)
	}
	if attempts := evictions(t, from, name, slow.Name); len(attempts) == 0 || attempts[0].Code != http.StatusCreated {
		t.Errorf("the Pod that terminates slowly was not evicted: %v", attempts)
	}
	patchPod(t, name, slow.Name, `{"metadata":{"finalizers":null}}`)
	untilDrained(t, slow.Spec.NodeName)

	untilEventNames(t, released) // before the Pod is evicted
	from = env.AuditEnd(t)
	unprotect(t, name, released.Name)
	untilDrained(t, released.Spec.NodeName)
	expectEvictedWhenAllowed(t, from, released)
	expectOneEvent(t, released)
}

// A drain that is never allowed times out, and is tried until then.
func TestDrainTimesOut(t *testing.T) {
	t.Parallel()
	const name = "stuck"
	stuck := newPod(name, "pod", createGroup(t, impatientShard, name, 1)[0])
	env.CreateNamespace(t, name)
	createPods(t, stuck)
	protect(t, name, stuck.Name)
	env.Scale(t, name, 0)
	expectTimedOut(t, stuck)
	untilEventNames(t, stuck)
	expectOneEvent(t, stuck)
}

// untilEventNames waits until an event reports that a Pod blocks a drain.
func untilEventNames(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	testcluster.Eventually(t, timeout, "an event reports what blocks", func(ctx context.Context) error {
		count, err := eventsNaming(ctx, pod)
		if err == nil && count == 0 {
			err = fmt.Errorf("no event names Pod %s", pod.Name)
		}
		return err
	})
}

func expectOneEvent(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	count, err := eventsNaming(t.Context(), pod)
	require.NoError(t, err)
	if count != 1 {
		t.Errorf("Pod %s and its Node %s and budget are named %d times by events, want once", pod.Name, pod.Spec.NodeName, count)
	}
}

// isCordon matches writes to a Node. Operators write nothing else to it.
func isCordon(node string) func(controlplane.Request) bool {
	return func(r controlplane.Request) bool {
		return r.Resource == "nodes" && r.Name == node && (r.Verb == "patch" || r.Verb == "update") && r.Code == http.StatusOK
	}
}

// namesBlocker reports whether a message names a Pod, its budget and its Node.
func namesBlocker(message string, pod *corev1.Pod) bool {
	return strings.Contains(message, pod.Spec.NodeName) &&
		strings.Contains(message, pod.Namespace+"/"+pod.Name) &&
		strings.Contains(message, budgetOf(pod.Name))
}

// expectEvictedWhenAllowed expects that a Pod was evicted by the first attempt after its
// budget allowed it, and with few attempts before. The budget was changed after from.
func expectEvictedWhenAllowed(t *testing.T, from controlplane.Position, pod *corev1.Pod) {
	t.Helper()
	// The log has the order of the responses.
	requests := env.Requests(t, from, func(r controlplane.Request) bool {
		return r.Namespace == pod.Namespace && r.Code < http.StatusInternalServerError &&
			(isEviction(r) && r.Name == pod.Name && testcluster.ByOperator(r) || r.Resource == "poddisruptionbudgets" && r.Verb != "get" && r.Name == budgetOf(pod.Name))
	})
	var changed time.Time
	before, after, allowed := 0, 0, false
	for _, r := range requests {
		switch {
		case r.Resource == "poddisruptionbudgets" && r.Subresource == "":
			changed = r.Time
		case r.Resource == "poddisruptionbudgets":
			// The controller of budgets counts disruptions after the change.
			allowed = allowed || !changed.IsZero() && r.Code == http.StatusOK
		case r.Code != http.StatusTooManyRequests:
			took := r.Time.Sub(changed)
			t.Logf("evicted %s after the change of the budget, after %d rejected attempts before its controller allowed it and %d later", took, before, after)
			if !allowed {
				t.Errorf("evicted before the budget allowed it:%s", testcluster.Describe(requests))
			}
			// An attempt may have been made while the controller wrote.
			if after > 1 {
				t.Errorf("%d attempts were rejected after the budget allowed the eviction", after)
			}
			if limit := 2 + int(took.Seconds()); before+after > limit {
				t.Errorf("%d attempts were rejected in %s, want at most %d", before+after, took, limit)
			}
			return
		case allowed:
			after++
		default:
			before++
		}
	}
	t.Errorf("the Pod was not evicted:%s", testcluster.Describe(requests))
}

// expectTimedOut expects that the drain of a Pod's Node takes until its deadline,
// and that the eviction was retried all the time, at most once a second.
func expectTimedOut(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	var d drain
	testcluster.Eventually(t, timeout, "the instance is deleted", func(context.Context) error {
		if d, _ = env.drains[impatientShard].ofInstance(pod.Spec.NodeName); d.Deleted.IsZero() {
			return fmt.Errorf("drain %+v", d)
		}
		return nil
	})
	assert.Empty(t, d.Acknowledged, "the drain was acknowledged with the Pod on the Node")
	attempts := evictions(t, 0, pod.Namespace, pod.Name)
	for _, attempt := range attempts {
		if attempt.Code < http.StatusBadRequest {
			t.Errorf("an attempt to evict the Pod was answered %d", attempt.Code)
		}
	}
	t.Logf("%d attempts were rejected in %s", len(attempts), shortDrainTimeout)
	if least, limit := int(shortDrainTimeout/(10*time.Second)), int(shortDrainTimeout/time.Second)+1; len(attempts) < least || len(attempts) > limit {
		t.Errorf("%d attempts were rejected, want %d to %d", len(attempts), least, limit)
	}
}

// eventsNaming counts how often events report what keeps a Pod on its Node.
func eventsNaming(ctx context.Context, pod *corev1.Pod) (int32, error) {
	events, err := env.Kube.EventsV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	var count int32
	for _, event := range events.Items {
		if !namesBlocker(event.Note, pod) {
			continue
		}
		if event.Series != nil {
			count += event.Series.Count
		} else {
			count++
		}
	}
	return count, nil
}
