// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

// Whoever deletes a Machine gets another one in the same shard, and the Pods of
// the first are asked to go before its instance does.
func TestMachineIsDeleted(t *testing.T) {
	t.Parallel()
	const name = "deleted"
	watchOperator(t)
	createPool(t, name, 3)
	before := untilRunning(t, name, 3)
	shardID := shardIDs[2]
	victim := before.on(shardID)[0]
	runPod(t, name, victim)
	from := auditEnd(t)
	kubectlDelete(t, "machine", victim)
	untilMachinesGone(t, victim)
	after := untilRunning(t, name, 3)
	expectReplaced(t, before, after, victim)
	expectInstances(t, name, after)
	expectNodeChanges(t, from, name, 1, victim)
	expectDrained(t, from, name, victim)
}

// A pool that is to have fewer at the moment when a Machine is deleted has that
// one less, and the shard that it was on.
func TestMachineIsDeletedAndReplicasLowered(t *testing.T) {
	t.Parallel()
	const name = "lowered"
	watchOperator(t)
	group := createPool(t, name, 4)
	before := untilRunning(t, name, 4) // 2 1 1: one less, spread evenly, would be the first shard's
	victim := before.on(shardIDs[2])[0]
	from := auditEnd(t)
	kubectlDelete(t, "machine", victim)
	if err := group.setSize(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	untilMachinesGone(t, victim)
	untilRunning(t, name, 3)
	untilLookedAgain(t)
	expectInstances(t, name, before.without(victim))
	expectNodeChanges(t, from, name, 0, victim)
}

// An instance that is lost has its Machine deleted, and another one comes in the
// same shard.
func TestInstanceIsLost(t *testing.T) {
	t.Parallel()
	const name = "lost"
	watchOperator(t)
	createPool(t, name, 3)
	before := untilRunning(t, name, 3)
	victim := before.on(shardIDs[1])[0]
	from := auditEnd(t)
	// The Node is the machine: its provider does not have it any more.
	if err := env.kube.CoreV1().Nodes().Delete(t.Context(), victim, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	untilMachinesGone(t, victim)
	after := untilRunning(t, name, 3)
	expectReplaced(t, before, after, victim)
	expectInstances(t, name, after)
	expectNodeChanges(t, from, name, 1, victim)
	expectMachinesDeleted(t, from, name, victim)
}

// A pool goes with all that it has, whichever half of it is deleted: its Machines
// first, so that Pods are asked to go.
func TestPoolIsDeleted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, resource string }{
		{"machinepool-deleted", "machinepool.cluster.x-k8s.io"},
		{"nstancepool-deleted", "nstancemachinepool"},
	} {
		t.Run(tc.resource, func(t *testing.T) {
			t.Parallel()
			watchOperator(t)
			createPool(t, tc.name, 3)
			found := untilRunning(t, tc.name, 3)
			for _, id := range found.ids() {
				runPod(t, tc.name, id)
			}
			from := auditEnd(t)
			kubectlDelete(t, tc.resource, tc.name)
			eventually(t, "nothing is left", func(ctx context.Context) error { return gone(ctx, tc.name) })
			expectMachinesDeleted(t, from, tc.name, found.ids()...)
			expectNodeChanges(t, from, tc.name, 0, found.ids()...)
			for _, id := range found.ids() {
				expectDrained(t, from, tc.name, id)
			}
		})
	}
}

// kubectlDelete is what an administrator does who does not wait.
func kubectlDelete(t *testing.T, resource, name string) {
	t.Helper()
	arguments := slices.Concat(env.Kubectl[1:], []string{"delete", "--wait=false", "--namespace", nstance.Namespace, resource, name})
	printed, err := exec.CommandContext(t.Context(), env.Kubectl[0], arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", arguments, err, printed)
	}
}

// expectReplaced fails the test unless one instance is another one on the same
// shard, and the rest is as it was.
func expectReplaced(t *testing.T, before, after instances, victim string) {
	t.Helper()
	rest := before.without(victim)
	if lost := rest.without(after.ids()...); len(lost) > 0 {
		t.Errorf("instances %v are gone too", lost.ids())
	}
	if _, there := after[victim]; there {
		t.Errorf("instance %s is still there", victim)
	}
	replacement := after.without(before.ids()...)
	if len(replacement) != 1 || len(replacement.on(before[victim])) != 1 {
		t.Errorf("in its place came %v, want one on shard %s", replacement, before[victim])
	}
}

// podOn is the name of the one Pod that a test has on a Node.
func podOn(pool, node string) string { return pool + "-on-" + node }

// runPod makes a Pod that is on a Node from the beginning, and that nobody makes
// anew, and returns when it runs.
func runPod(t *testing.T, pool, node string) {
	t.Helper()
	name, pods := podOn(pool, node), env.kube.CoreV1().Pods(nstance.Namespace)
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:                     node,
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "Pod "+name+" runs", func(ctx context.Context) error {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = errors.New("it is " + string(pod.Status.Phase))
		}
		return err
	})
}

// expectDrained fails the test unless Cluster API has cordoned a Node and evicted
// the Pod on it since from, before anybody asked for the Node to be deleted.
func expectDrained(t *testing.T, from controlplane.Position, pool, node string) {
	t.Helper()
	// when is the time of the first write that matches.
	when := func(what string, match func(controlplane.Write) bool) (time.Time, error) {
		found := writesSince(t, from, match)
		if len(found) == 0 {
			return time.Time{}, fmt.Errorf("Node %s: nobody has %s", node, what)
		}
		return found[0].Time, nil
	}
	cordoned, err := when("cordoned it", func(w controlplane.Write) bool {
		return w.User == capiUser && w.Verb == "patch" && w.Resource == "nodes" && w.Name == node
	})
	evicted, evictErr := when("evicted its Pod", func(w controlplane.Write) bool {
		return w.User == capiUser && w.Resource == "pods" && w.Subresource == "eviction" && w.Name == podOn(pool, node) && w.Code == http.StatusCreated
	})
	deleted, deleteErr := when("deleted it", func(w controlplane.Write) bool {
		return w.Verb == "delete" && w.Resource == "nodes" && w.Name == node
	})
	if err := errors.Join(err, evictErr, deleteErr); err != nil {
		t.Error(err)
		return
	}
	if evicted.Before(cordoned) || deleted.Before(evicted) {
		t.Errorf("Node %s was cordoned at %v, its Pod evicted at %v and it deleted at %v", node, cordoned, evicted, deleted)
	}
}
