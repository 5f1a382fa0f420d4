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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A drain that a budget blocks holds up no other one. It goes on soon after the
// budget allows it, and one that is never allowed ends when its time is over. A
// Pod that takes its time to end is waited for.
func TestBlockedDrains(t *testing.T) {
	t.Parallel()
	const name, others = "blocked", 50
	nodes := createGroup(t, steadyShard, name, others+3)
	createNamespace(t, name)
	var pods []*corev1.Pod
	for i, node := range nodes {
		pods = append(pods, newPod(name, fmt.Sprintf("pod-%d", i), node))
	}
	released, stuck, slow := pods[0], pods[1], pods[2]
	slow.Finalizers = []string{keep}
	createPods(t, pods...)
	protect(t, name, released.Name)
	protect(t, name, stuck.Name)
	isOther := func(d *drain) bool {
		return d.Group == name && !slices.Contains(nodes[:3], d.Instance)
	}

	from := auditEnd(t)
	scale(t, name, 0)
	eventually(t, "the others are acknowledged", func(context.Context) error {
		acknowledged := 0
		for _, d := range env.relays[steadyShard].drainsWith(isOther) {
			if len(d.Acknowledged) > 0 {
				acknowledged++
			}
		}
		if acknowledged < others {
			return fmt.Errorf("%d of %d", acknowledged, others)
		}
		return nil
	})
	for _, d := range env.relays[steadyShard].drainsWith(isOther) {
		expectHonest(t, d)
		if writes := operatorRequests(t, from, isCordon(d.Instance)); len(writes) == 0 {
			t.Errorf("Node %s was not cordoned", d.Instance)
		}
	}
	for _, pod := range []*corev1.Pod{released, stuck} {
		eventually(t, "the Node with the protected Pod is cordoned", func(ctx context.Context) error {
			return cordoned(ctx, pod.Spec.NodeName, steadyShard+"/"+pod.Spec.NodeName)
		})
		if d, _ := env.relays[steadyShard].drain(of(pod.Spec.NodeName)); len(d.Acknowledged) > 0 {
			t.Errorf("the blocked drain of %s was acknowledged", d.Instance)
		}
	}
	eventually(t, "the shard group says what blocks", func(ctx context.Context) error {
		condition, err := progress(ctx, steadyShard, name)
		if err == nil && (condition.Status != metav1.ConditionFalse || condition.Reason != v1beta1.ReasonDrainBlocked ||
			!names(condition.Message, released) && !names(condition.Message, stuck)) {
			err = fmt.Errorf("condition %+v", condition)
		}
		return err
	})

	if d, _ := env.relays[steadyShard].drain(of(slow.Spec.NodeName)); len(d.Acknowledged) > 0 {
		t.Errorf("the drain of %s was acknowledged before its Pod had ended", d.Instance)
	}
	if tries := evictions(t, from, name, slow.Name); len(tries) == 0 || tries[0].Code != http.StatusCreated {
		t.Errorf("the Pod that was to take its time was not evicted: %v", tries)
	}
	patchPod(t, name, slow.Name, `{"metadata":{"finalizers":null}}`)
	untilDrained(t, slow.Spec.NodeName)

	// The condition names one of them; both have to be told of before one may go.
	for _, pod := range []*corev1.Pod{released, stuck} {
		eventually(t, "an event says what blocks", func(ctx context.Context) error {
			told, err := eventsNaming(ctx, pod)
			if err == nil && told == 0 {
				err = fmt.Errorf("Pod %s is not named by any", pod.Name)
			}
			return err
		})
	}

	from = auditEnd(t)
	unprotect(t, name, released.Name)
	untilDrained(t, released.Spec.NodeName)
	expectEvictedSoon(t, from, released)

	expectTimedOut(t, stuck)
	for _, pod := range []*corev1.Pod{released, stuck} {
		told, err := eventsNaming(t.Context(), pod)
		if err != nil {
			t.Fatal(err)
		}
		if told != 1 {
			t.Errorf("Pod %s and its Node %s and budget are named %d times by events, want once", pod.Name, pod.Spec.NodeName, told)
		}
	}
}

// isCordon matches writes to a Node. Operators write nothing else to it.
func isCordon(node string) func(controlplane.Request) bool {
	return func(r controlplane.Request) bool {
		return r.Resource == "nodes" && r.Name == node && (r.Verb == "patch" || r.Verb == "update") && r.Code == http.StatusOK
	}
}

// names tells whether a message names a Pod, its budget and its Node.
func names(message string, pod *corev1.Pod) bool {
	return strings.Contains(message, pod.Spec.NodeName) &&
		strings.Contains(message, pod.Namespace+"/"+pod.Name) &&
		strings.Contains(message, budgetOf(pod.Name))
}

// expectEvictedSoon expects that a Pod was evicted soon after its budget was
// changed, which was the first write after from, and not asked for too often.
func expectEvictedSoon(t *testing.T, from controlplane.Position, pod *corev1.Pod) {
	t.Helper()
	changes, err := env.AuditLog().Writes(from, func(w controlplane.Write) bool {
		return w.Resource == "poddisruptionbudgets" && w.Subresource == "" && w.Namespace == pod.Namespace && w.Name == budgetOf(pod.Name)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) == 0 {
		t.Fatal("the change of the budget is not in the audit log")
	}
	refused := 0
	for _, try := range evictions(t, from, pod.Namespace, pod.Name) {
		if try.Code == http.StatusTooManyRequests {
			refused++
			continue
		}
		took := try.Time.Sub(changes[0].Time)
		t.Logf("evicted %s after its budget allowed it, after %d refusals in between", took, refused)
		if took > 15*time.Second {
			t.Errorf("evicted only %s after its budget allowed it", took)
		}
		// The controller of budgets needs a moment of its own.
		if most := 2 + int(took.Seconds()); refused > most {
			t.Errorf("was refused %d times in %s, want at most %d", refused, took, most)
		}
		return
	}
	t.Error("the Pod was not evicted")
}

// expectTimedOut expects that the drain of a Pod's Node takes as long as it may,
// and that the Pod was asked to leave all the time, though not more often than
// once a second.
func expectTimedOut(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	var d drain
	eventually(t, "the instance ends", func(context.Context) error {
		if d, _ = env.relays[steadyShard].drain(of(pod.Spec.NodeName)); d.Ended.IsZero() {
			return fmt.Errorf("drain %+v", d)
		}
		return nil
	})
	for _, a := range d.Acknowledged {
		if a.At.Before(d.DeleteAt.Add(-time.Second)) {
			t.Errorf("acknowledged %s before the time was over, with the Pod on the Node", d.DeleteAt.Sub(a.At))
		}
	}
	tries := evictions(t, 0, pod.Namespace, pod.Name)
	for _, try := range tries {
		if try.Code < http.StatusBadRequest {
			t.Errorf("a try to evict the Pod was answered %d", try.Code)
		}
	}
	t.Logf("was refused %d times in %s", len(tries), drainTimeout)
	if least, most := int(drainTimeout/(10*time.Second)), int(drainTimeout/time.Second)+1; len(tries) < least || len(tries) > most {
		t.Errorf("was refused %d times, want %d to %d", len(tries), least, most)
	}
}

// eventsNaming counts how often events tell of what keeps a Pod on its Node.
func eventsNaming(ctx context.Context, pod *corev1.Pod) (int32, error) {
	events, err := env.kube.EventsV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	var told int32
	for _, event := range events.Items {
		if !names(event.Note, pod) {
			continue
		}
		if event.Series != nil {
			told += event.Series.Count
		} else {
			told++
		}
	}
	return told, nil
}
