// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/dockerhost"
	"nstance.dev/operator/e2e/testcluster"
	dockerprovider "nstance.dev/operator/pkg/server/provider/docker"
)

// containerLog records the events of Docker about the containers of the nodes. A container has the
// name of its instance and of its Node.
type containerLog struct {
	mu      sync.Mutex
	entries []containerEvent
	// podsAtStop are the Pods that were on a Node when its container got the first signal.
	podsAtStop map[string][]string
	err        error
}

type containerEvent struct {
	action          events.Action
	group, instance string
}

func newContainerLog() *containerLog { return &containerLog{podsAtStop: map[string][]string{}} }

// run records until ctx is done.
func (l *containerLog) run(ctx context.Context, host *dockerhost.Host) {
	reported := host.Client.Events(ctx, client.EventsListOptions{
		Filters: client.Filters{}.Add("type", string(events.ContainerEventType)).Add("label", dockerprovider.LabelManaged),
	})
	for {
		select {
		case <-ctx.Done():
			return
		case message := <-reported.Messages:
			if slices.Contains(shardIDs, message.Actor.Attributes[dockerprovider.LabelShard]) {
				l.record(ctx, message)
			}
		case err := <-reported.Err:
			if ctx.Err() == nil {
				l.fail(fmt.Errorf("follow the events of Docker: %w", err))
			}
			return
		}
	}
}

func (l *containerLog) record(ctx context.Context, message events.Message) {
	event := containerEvent{message.Action, message.Actor.Attributes[dockerprovider.LabelGroup], message.Actor.Attributes[dockerprovider.LabelInstanceID]}
	l.mu.Lock()
	_, stopped := l.podsAtStop[event.instance]
	l.entries = append(l.entries, event)
	l.mu.Unlock()
	if message.Action != events.ActionKill || stopped {
		return
	}
	// Pods that were not evicted are still there: Kubernetes removes them with their Node.
	pods, err := podsOn(ctx, event.instance)
	if err != nil {
		l.fail(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.podsAtStop[event.instance] = pods
}

func (l *containerLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = errors.Join(l.err, err)
}

// instances returns the instances of a group by the events of an action on their containers, in
// order, once for each event.
func (l *containerLog) instances(t testing.TB, group string, action events.Action) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.NoError(t, l.err)
	var instances []string
	for _, e := range l.entries {
		if e.group == group && e.action == action {
			instances = append(instances, e.instance)
		}
	}
	return instances
}

// untilCount waits until list returns so many instances of a group.
func untilCount(t testing.TB, what string, list func(t testing.TB, group string) []string, group string, count int) {
	t.Helper()
	testcluster.Eventually(t, 5*time.Minute, fmt.Sprintf("%d containers of %s are %s", count, group, what), func(context.Context) error {
		if got := len(list(t, group)); got < count {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

// untilStarted waits until so many containers of a group were started.
func (l *containerLog) untilStarted(t testing.TB, group string, count int) {
	t.Helper()
	untilCount(t, "started", l.started, group, count)
}

// untilRemoved waits until so many machines of a group were removed.
func (l *containerLog) untilRemoved(t testing.TB, group string, count int) {
	t.Helper()
	untilCount(t, "removed", l.removed, group, count)
}

// stopped returns the instances of a group whose containers have got a signal.
func (l *containerLog) stopped(t testing.TB, group string) []string {
	t.Helper()
	return slices.Compact(slices.Sorted(slices.Values(l.instances(t, group, events.ActionKill))))
}

// started returns the instances of a group whose containers were started. A container that was
// created, and not started because its server was killed in between, is no machine.
func (l *containerLog) started(t testing.TB, group string) []string {
	t.Helper()
	return l.instances(t, group, events.ActionStart)
}

// removed returns the instances whose containers were started and removed.
func (l *containerLog) removed(t testing.TB, group string) []string {
	t.Helper()
	started := l.started(t, group)
	return slices.DeleteFunc(l.instances(t, group, events.ActionDestroy), func(instance string) bool {
		return !slices.Contains(started, instance)
	})
}

// expectCounts compares how many machines a group has had, each once, and how many were
// removed.
func (l *containerLog) expectCounts(t testing.TB, group string, started, removed int) {
	t.Helper()
	got := l.started(t, group)
	assert.Len(t, got, started, "started containers of %s", group)
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(got))), len(got), "started containers by instance: %q", got)
	assert.Len(t, l.removed(t, group), removed, "removed containers of %s", group)
}

// expectDrained checks that no Pod was on a Node of a group when its container was stopped,
// and that so many were stopped.
func (l *containerLog) expectDrained(t testing.TB, group string, count int) {
	t.Helper()
	stopped := l.stopped(t, group)
	assert.Len(t, stopped, count, "stopped containers of %s", group)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, instance := range stopped {
		assert.Empty(t, l.podsAtStop[instance], "Pods on Node %s when its container was stopped", instance)
	}
}

// atStop returns the Pods that were on a Node when its container was stopped.
func (l *containerLog) atStop(node string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.podsAtStop[node]
}

// runInContainer starts a command in a container.
func runInContainer(ctx context.Context, id string, command ...string) error {
	created, err := docker.Client.ExecCreate(ctx, id, client.ExecCreateOptions{Cmd: command})
	if err != nil {
		return err
	}
	_, err = docker.Client.ExecStart(ctx, created.ID, client.ExecStartOptions{Detach: true})
	return err
}

// ids returns the ids of the containers of a group by instance.
func ids(t testing.TB, group string) map[string]string {
	t.Helper()
	nodes, err := docker.Nodes(t.Context(), shardIDs...)
	require.NoError(t, err)
	byInstance := map[string]string{}
	for _, node := range nodes {
		if node.Labels[dockerprovider.LabelGroup] == group {
			byInstance[node.Labels[dockerprovider.LabelInstanceID]] = node.ID
		}
	}
	return byInstance
}

// podsOn returns the Pods on a Node whose containers have not exited for good.
func podsOn(ctx context.Context, node string) ([]string, error) {
	list, err := env.PodsOn(ctx, node)
	if err != nil {
		return nil, err
	}
	pods := make([]string, 0, len(list))
	for _, pod := range list {
		if !testcluster.HasExited(pod) {
			pods = append(pods, fmt.Sprintf("%s/%s %s", pod.Namespace, pod.Name, pod.Status.Phase))
		}
	}
	return pods, nil
}
