// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

const (
	// rotatedGroup is a static group of all shards whose userdata is changed.
	rotatedGroup = "rotated"
	// windowLength is the shortest that a window may be.
	windowLength = 10 * time.Minute
	// untilClosed is how long a window is open that is to close while a drain is blocked. The first drain
	// begins much sooner.
	untilClosed = 90 * time.Second
)

// A rotation of six real Nodes stops after its canary if new machines do not join, goes on with other userdata,
// stops again when its window closes, after it has finished what had begun, and keeps to its surge although two
// machines are announced to be terminated meanwhile. A client of a Deployment with a budget sees no failed
// request. The test is not parallel, because the shards get other configurations.
func TestRotationOfRealNodes(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const name, replicas, surge = rotatedGroup, 6, 2
	testcluster.Eventually(t, time.Minute, "the group is imported from all shards", func(ctx context.Context) error {
		groups, err := env.ShardGroups(ctx, name)
		if err == nil && len(groups) < len(shardIDs) {
			err = fmt.Errorf("there are %d shard groups", len(groups))
		}
		return err
	})
	rotation := func(settings string) {
		t.Helper()
		_, err := env.PatchNstanceMachinePool(t.Context(), name, `{"spec":{"rotation":`+settings+`}}`)
		require.NoError(t, err)
	}
	rotation(`{"maxSurge":"25%","canary":1,"progressDeadlineSeconds":40}`)
	t.Cleanup(func() { untilScaledToZero(t, name) })
	env.Scale(t, name, replicas)
	env.UntilRunning(t, name, replicas)
	createDeployment(t, name, replicas)
	untilAvailable(t, name, replicas)
	client := newServiceClient(t, name)
	client.untilServed(t, 100)
	before := containers.started(t, name)
	require.Len(t, before, replicas)
	untilRollingOut(t, metav1.ConditionFalse, v1beta1.ReasonNotRollingOut)

	// New machines do not join: the canary is tried, and no other machine.
	t.Cleanup(func() { setUserdata(t, name, "") })
	setUserdata(t, name, "\nrm /etc/kubernetes/bootstrap.conf # never joins\n")
	message := untilRollingOut(t, metav1.ConditionTrue, v1beta1.ReasonRotationFailed)
	tried := containers.started(t, name)[replicas:]
	require.Len(t, tried, 1, "new machines")
	assert.Contains(t, message, tried[0])
	assert.Empty(t, containers.stopped(t, name), "stopped machines")
	for _, node := range before {
		assert.False(t, isCordoned(t.Context(), t, node), "Node %s is cordoned", node)
	}

	// The window closes while a drain is blocked by the budget.
	env.Kubectl(t, "patch", "poddisruptionbudget", "web", "--namespace", name, "--patch", `{"spec":{"maxUnavailable":0}}`)
	rotation(fmt.Sprintf(`{"windows":[{"schedule":%q,"durationMinutes":%d}]}`, schedule(time.Now().Add(untilClosed)), int(windowLength.Minutes())))
	setUserdata(t, name, "\n# joins again\n")
	testcluster.Eventually(t, untilClosed, "a Node is drained before the window closes", func(ctx context.Context) error {
		if !slices.ContainsFunc(before, func(node string) bool { return isCordoned(ctx, t, node) }) {
			return fmt.Errorf("none of %v is cordoned", before)
		}
		return nil
	})
	untilRollingOut(t, metav1.ConditionTrue, v1beta1.ReasonOutsideWindow)
	begun := len(containers.started(t, name))
	assert.Less(t, begun, 2*replicas, "machines that were started")
	env.Kubectl(t, "patch", "poddisruptionbudget", "web", "--namespace", name, "--patch", `{"spec":{"maxUnavailable":1}}`)
	// What has begun is finished.
	env.UntilRunning(t, name, replicas)
	assert.Len(t, containers.started(t, name), begun, "machines that were started")
	untilRollingOut(t, metav1.ConditionTrue, v1beta1.ReasonOutsideWindow)
	var left []string
	for _, node := range env.NodeNames(t, name) {
		if slices.Contains(before, node) {
			left = append(left, node)
		}
	}
	require.NotEmpty(t, left, "Nodes from before the rotation")
	require.Less(t, len(left), replicas, "Nodes from before the rotation")

	// Two machines are announced to be terminated while the rest is replaced: an old one and a new one.
	rotation(`{"windows":null}`)
	containers.untilStarted(t, name, begun+1)
	noticed := []string{left[len(left)-1], newest(t, name, left)}
	giveNotices(t, noticed, "")
	untilRollingOut(t, metav1.ConditionFalse, v1beta1.ReasonNotRollingOut)
	env.UntilRunning(t, name, replicas)
	untilAvailable(t, name, replicas)
	client.untilServed(t, 100)
	client.expectNoFailure(t)

	after := env.NodeNames(t, name)
	for _, node := range slices.Concat(before, tried, noticed) {
		assert.NotContains(t, after, node, "Nodes")
	}
	// Each Node of the first six and the noticed new machine were replaced once, and the canary that failed.
	containers.expectCounts(t, name, replicas+1+replicas+1, replicas+1+1)
	containers.expectDrained(t, name, replicas+1+1)
	assert.LessOrEqual(t, containers.most(t, name), replicas+surge+len(noticed), "machines at once")
}

// setUserdata adds lines to the userdata of a static group on all shards.
func setUserdata(t *testing.T, group, lines string) {
	t.Helper()
	for _, shard := range shardIDs {
		env.Reconfigure(t, shard, func(s *installation.Shard) {
			s.Groups = maps.Clone(s.Groups)
			s.Groups[group] = installation.Group{Userdata: lines}
		})
	}
}

// schedule returns the schedule of a window of windowLength that closes at the end of the minute of a time.
func schedule(end time.Time) string {
	opens := end.UTC().Truncate(time.Minute).Add(time.Minute - windowLength)
	return fmt.Sprintf("%d %d * * *", opens.Minute(), opens.Hour())
}

// untilRollingOut waits for the condition RollingOut of the rotated pool, and returns its message.
func untilRollingOut(t *testing.T, status metav1.ConditionStatus, reason string) (message string) {
	t.Helper()
	testcluster.Eventually(t, 5*time.Minute, "RollingOut is "+reason, func(ctx context.Context) error {
		found, err := env.NstanceMachinePool(ctx, rotatedGroup)
		if err != nil {
			return err
		}
		if condition := meta.FindStatusCondition(found.Status.Conditions, v1beta1.ConditionRollingOut); condition != nil {
			message = condition.Message
		}
		return testcluster.HasCondition(found.Status.Conditions, v1beta1.ConditionRollingOut, status, reason)
	})
	return message
}

// isCordoned reports whether a Node exists and is unschedulable.
func isCordoned(ctx context.Context, t *testing.T, name string) bool {
	t.Helper()
	list, err := env.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(t, err)
	return slices.ContainsFunc(list.Items, func(node corev1.Node) bool { return node.Spec.Unschedulable })
}

// newest returns a Node of a pool that is none of others.
func newest(t *testing.T, pool string, others []string) string {
	t.Helper()
	nodes := slices.DeleteFunc(env.NodeNames(t, pool), func(node string) bool { return slices.Contains(others, node) })
	require.NotEmpty(t, nodes)
	return slices.Max(nodes)
}

// most returns how many machines of a group ran at the same time, at most.
func (l *containerLog) most(t testing.TB, group string) int {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	running, most := map[string]bool{}, 0
	for _, e := range l.entries {
		switch {
		case e.group != group:
		case e.action == events.ActionStart:
			running[e.instance] = true
		case e.action == events.ActionDestroy:
			delete(running, e.instance)
		}
		most = max(most, len(running))
	}
	return most
}
