// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The events of a node in a timeline: the container is created, the Node is cordoned, the
// container gets the first signal, and is removed.
const (
	created  = "create"
	cordoned = "cordon"
	stopped  = "kill"
	removed  = "destroy"
)

type step struct {
	what, node string
	at         time.Time
}

// timeline has the events of the nodes of a pool, in order.
type timeline struct {
	mu    sync.Mutex
	steps []step
	// pods has how many Pods were on a Node when its container was stopped.
	pods map[string]int
}

func (l *timeline) add(ctx context.Context, what, node string) {
	pods := 0
	if what == stopped {
		pods = podsOnNode(ctx, node)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.steps, func(s step) bool { return s.what == what && s.node == node }) && what != removed && what != created {
		return // a container gets several signals, and a Node several changes
	}
	l.steps = append(l.steps, step{what, node, time.Now()})
	if what == stopped {
		l.pods[node] = pods
	}
}

// nodes returns the nodes that have had an event, in order.
func (l *timeline) nodes(what string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var nodes []string
	for _, s := range l.steps {
		if s.what == what {
			nodes = append(nodes, s.node)
		}
	}
	return nodes
}

func (l *timeline) at(what, node string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.steps {
		if s.what == what && s.node == node {
			return s.at
		}
	}
	return time.Time{}
}

// podsAtStop returns how many Pods were on a Node when its container was stopped.
func (l *timeline) podsAtStop(node string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[node]
}

// follow records the events of the nodes of a pool from now until the end of the test.
func follow(t *testing.T, pool string) *timeline {
	t.Helper()
	l := &timeline{pods: map[string]int{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	factory := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = v1beta1.LabelGroup + "=" + pool
	}))
	require.NoError(t, testcluster.RunInformer(ctx, factory.Core().V1().Nodes().Informer(), cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, changed any) {
			if node := changed.(*corev1.Node); node.Spec.Unschedulable {
				l.add(ctx, cordoned, node.Name)
			}
		},
	}))
	events := exec.CommandContext(ctx, "docker", "--host", docker.Address, "events", "--filter", "type=container",
		"--filter", "label=nstance.dev/group="+pool, "--format", "{{.Action}} {{.Actor.Attributes.name}}", "--since", "0s")
	output, err := events.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, events.Start())
	running.Go(func() {
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			if what, node, _ := strings.Cut(lines.Text(), " "); slices.Contains([]string{created, stopped, removed}, what) {
				l.add(ctx, what, node)
			}
		}
		_ = events.Wait() // it is killed
	})
	return l
}

// podsOnNode returns how many Pods that have not exited are on a Node, -1 after an error.
func podsOnNode(ctx context.Context, node string) int {
	list, err := env.PodsOn(ctx, node)
	if err != nil {
		return -1
	}
	return len(slices.DeleteFunc(list, testcluster.HasExited))
}

// TestSpotNotices: the machines of all nodes of a pool are announced to be terminated at once.
// Each is replaced, cordoned and drained, in this order, and its container is removed when it is
// empty. A container that cannot be drained is removed at the time of the notice.
func TestSpotNotices(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const name, replicas = "spot", 3
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, replicas)
	env.UntilRunning(t, name, replicas)
	createDeployment(t, name, replicas)
	old := env.NodeNames(t, name)
	require.Len(t, old, replicas)

	l := follow(t, name)
	begin := time.Now()
	giveNotices(t, old, "")
	testcluster.Eventually(t, 3*time.Minute, "the old containers are removed", func(context.Context) error {
		if got := len(l.nodes(removed)); got < replicas {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
	env.UntilRunning(t, name, replicas)
	assert.ElementsMatch(t, old, l.nodes(removed), "each once")
	assert.ElementsMatch(t, old, l.nodes(stopped))
	assert.ElementsMatch(t, old, l.nodes(cordoned))
	replacements := l.nodes(created)
	assert.Len(t, replacements, replicas)
	assert.ElementsMatch(t, env.NodeNames(t, name), replacements)
	for i, node := range old {
		// Each shard has one node, so the replacements were requested for them.
		assert.True(t, l.at(cordoned, node).Before(l.at(stopped, node)), "%s was cordoned before it was stopped", node)
		assert.True(t, l.at(created, replacements[i]).Before(l.at(stopped, node)), "replacements were created before %s was stopped", node)
		assert.Zero(t, l.podsAtStop(node), "Pods on %s when it was stopped", node)
		t.Logf("after the notices: %s cordoned in %s, a replacement in %s, stopped in %s", node,
			l.at(cordoned, node).Sub(begin), l.at(created, replacements[i]).Sub(begin), l.at(stopped, node).Sub(begin))
	}

	// Nothing may be evicted now.
	env.Kubectl(t, "patch", "poddisruptionbudget", "web", "--namespace", name, "--patch", `{"spec":{"maxUnavailable":0}}`)
	blocked := nodeWithPod(t, name)
	deadline := time.Now().Add(15 * time.Second).Truncate(time.Second)
	giveNotices(t, []string{blocked}, fmt.Sprintf(`{"action": "terminate", "time": %q}`, deadline.UTC().Format(time.RFC3339)))
	testcluster.Eventually(t, drainTimeout, "the container of "+blocked+" is stopped before the drain timeout", func(context.Context) error {
		if l.at(stopped, blocked).IsZero() {
			return fmt.Errorf("it runs, %s before the deadline", time.Until(deadline))
		}
		return nil
	})
	assert.False(t, l.at(stopped, blocked).Before(deadline), "it was stopped before the deadline")
	assert.Positive(t, l.podsAtStop(blocked), "Pods on it when it was stopped")
	assert.Len(t, l.nodes(created), replicas+1)
	env.Kubectl(t, "patch", "poddisruptionbudget", "web", "--namespace", name, "--patch", `{"spec":{"maxUnavailable":1}}`)
	env.UntilRunning(t, name, replicas)
}

// nodeWithPod returns a Node of a pool on which a server runs. There may be Pods of Nodes that
// were deleted.
func nodeWithPod(t *testing.T, pool string) string {
	t.Helper()
	nodes := env.NodeNames(t, pool)
	found := ""
	testcluster.Eventually(t, time.Minute, "a server runs on a Node of "+pool, func(ctx context.Context) error {
		for _, pod := range pods(ctx, t, pool) {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && slices.Contains(nodes, pod.Spec.NodeName) {
				found = pod.Spec.NodeName
				return nil
			}
		}
		return errors.New("none does")
	})
	return found
}

// giveNotices announces the termination of nodes.
func giveNotices(t *testing.T, nodes []string, content string) {
	t.Helper()
	for _, node := range nodes {
		shard := strings.TrimSpace(runDocker(t, "inspect", "--format", `{{index .Config.Labels "nstance.dev/shard"}}`, node))
		require.NoError(t, env.Installation.GiveNotice(shard, node, []byte(content)))
	}
}
