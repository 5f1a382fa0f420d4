// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package spotnotices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// fullMachines is how many get a notice at once in make test-full and in the benchmark.
	fullMachines = 50
	// period is the time from a notice to the termination, as on AWS
	// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
	period = 2 * time.Minute
	// timeout is how long a test waits for what must happen.
	timeout = 3 * time.Minute
)

// history has the changes of the Nodes of a group, at the times when the API server reported them.
type history struct {
	mu                         sync.Mutex
	created, cordoned, deleted map[string]time.Time
	// evicted is when the Pod of a Node was being deleted.
	evicted map[string]time.Time
}

// follow records the changes of the Nodes of a group, and of the Pods in the namespace of its
// name, until ctx is done.
func follow(ctx context.Context, t testing.TB, group string) *history {
	t.Helper()
	h := &history{created: map[string]time.Time{}, cordoned: map[string]time.Time{}, deleted: map[string]time.Time{}, evicted: map[string]time.Time{}}
	record := func(times map[string]time.Time, name string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, found := times[name]; !found {
			times[name] = time.Now()
		}
	}
	nodes := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = v1beta1.LabelGroup + "=" + group
	})).Core().V1().Nodes().Informer()
	require.NoError(t, testcluster.RunInformer(ctx, nodes, cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { record(h.created, object.(*corev1.Node).Name) },
		UpdateFunc: func(_, object any) {
			if node := object.(*corev1.Node); node.Spec.Unschedulable {
				record(h.cordoned, node.Name)
			}
		},
		DeleteFunc: func(object any) {
			name, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
			record(h.deleted, name)
		},
	}))
	pods := informers.NewSharedInformerFactoryWithOptions(env.Kube, 0, informers.WithNamespace(group)).Core().V1().Pods().Informer()
	require.NoError(t, testcluster.RunInformer(ctx, pods, cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) {
			if pod := object.(*corev1.Pod); pod.DeletionTimestamp != nil {
				record(h.evicted, pod.Spec.NodeName)
			}
		},
		DeleteFunc: func(object any) {
			if pod, ok := object.(*corev1.Pod); ok {
				record(h.evicted, pod.Spec.NodeName)
			}
		},
	}))
	return h
}

// snapshot returns copies of all times.
func (h *history) snapshot() (created, cordoned, evicted, deleted map[string]time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.created), maps.Clone(h.cordoned), maps.Clone(h.evicted), maps.Clone(h.deleted)
}

// announced has the results of an announcement.
type announced struct {
	// cordons and replacements are the sorted delays after the notices.
	cordons, replacements []time.Duration
}

// announce creates a group of machines on a shard of its name, with a Pod on each Node,
// announces the termination of all of them at once, and returns when they are terminated and
// replaced. It checks that each was replaced once, and drained before it was terminated.
func announce(t testing.TB, log testing.TB, name string, machines int) announced {
	t.Helper()
	server := servertest.Start(log, servertest.Options{
		Cluster: installation.ClusterID, Shard: name, Authority: env.Installation.Authority(), Kubernetes: env.Kube,
		Agents: true, DrainTimeout: "5m",
	})
	c := startCloud(t, server)
	env.EditShards(t, func(shards map[string]string) { shards[name] = server.Addr })
	require.NoError(t, env.CreatePoolOn(t.Context(), name, int32(machines), name))
	env.UntilRunning(t, name, int32(machines))
	old := slices.Sorted(maps.Keys(server.Created()))
	require.Len(t, old, machines)
	env.CreateNamespace(t, name)
	pods := make([]*corev1.Pod, len(old))
	for i, node := range old {
		pods[i] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: node},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.com/none"}}},
		}
	}
	env.CreatePods(t, timeout, pods...)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := follow(ctx, t, name)
	begin := time.Now()
	c.announce(old, begin.Add(period))
	testcluster.Eventually(t, timeout, "the machines are terminated", func(context.Context) error {
		if _, _, _, deleted := h.snapshot(); len(deleted) < machines {
			return fmt.Errorf("%d are", len(deleted))
		}
		return nil
	})
	env.UntilRunning(t, name, int32(machines))

	created, cordoned, evicted, deleted := h.snapshot()
	assert.Equal(t, old, slices.Sorted(maps.Keys(deleted)), "exactly the announced machines are terminated")
	assert.Equal(t, old, slices.Sorted(maps.Keys(cordoned)), "and cordoned")
	assert.Len(t, server.Created(), 2*machines, "each is replaced once")
	assert.Len(t, server.Calls("AcknowledgeDrained"), machines, "acknowledged drains")
	var result announced
	for _, node := range old {
		assert.True(t, cordoned[node].Before(evicted[node]), "%s: cordoned, then its Pod evicted", node)
		assert.True(t, evicted[node].Before(deleted[node]), "%s: its Pod evicted, then terminated", node)
		result.cordons = append(result.cordons, cordoned[node].Sub(begin))
	}
	for node, at := range created {
		if !slices.Contains(old, node) {
			result.replacements = append(result.replacements, at.Sub(begin))
		}
	}
	require.Len(t, result.replacements, machines)
	slices.Sort(result.cordons)
	slices.Sort(result.replacements)
	for i, at := range slices.SortedFunc(maps.Values(deleted), time.Time.Compare) {
		assert.Less(t, result.replacements[i], at.Sub(begin), "as many replacements as machines that are terminated: %d", i+1)
	}
	return result
}

// TestManyNotices: each machine is replaced once, and cordoned and drained before it is
// terminated. There are never fewer machines than before.
func TestManyNotices(t *testing.T) {
	machines := tier.Pick(15, fullMachines)
	result := announce(t, t, "spot", machines)
	t.Logf("the last Node was cordoned %s after the notices, the last replacement requested %s after them",
		result.cordons[machines-1], result.replacements[machines-1])
}

// mostDelay is the target: how long after a notice a replacement is requested and the Node
// cordoned.
const mostDelay = 5 * time.Second

// BenchmarkSpotNotices50 announces the termination of 50 machines at once. It measures from
// the moment when their metadata services have the notices to the moments when the API
// server has the cordoned Nodes, and the Nodes of the requested replacements.
func BenchmarkSpotNotices50(b *testing.B) {
	for b.Loop() {
		result := announce(b, testcluster.WithoutLog(b), "bench", fullMachines)
		b.ReportMetric(testcluster.PercentileMilliseconds(result.cordons, 50), "cordon-p50-ms")
		b.ReportMetric(testcluster.PercentileMilliseconds(result.cordons, 99), "cordon-p99-ms")
		b.ReportMetric(testcluster.PercentileMilliseconds(result.replacements, 50), "replacement-p50-ms")
		b.ReportMetric(testcluster.PercentileMilliseconds(result.replacements, 99), "replacement-p99-ms")
		most := float64(mostDelay.Milliseconds())
		require.LessOrEqual(b, testcluster.PercentileMilliseconds(result.cordons, 99), most, "ms until the Nodes were cordoned")
		require.LessOrEqual(b, testcluster.PercentileMilliseconds(result.replacements, 99), most, "ms until the replacements were requested")
	}
}
