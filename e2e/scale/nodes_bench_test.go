// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

const (
	// nodesPerGroup times groups are 5,000 Nodes.
	nodesPerGroup = 5
	// podsPerNode times 5,000 Nodes is 150,000 Pods.
	podsPerNode = 30
	// writers is how many objects are written at once.
	writers = 32
	// samples is how many groups are scaled up to count the requests of one change.
	samples = 5
	// idlePeriod is how long the idle operator is measured: some collections of its garbage, and one status
	// update of the kubelet of each of 5,000 Nodes.
	idlePeriod = 5 * time.Minute

	// maxResident is the most memory that the operator may ever have resident, in MiB.
	maxResident = 300
	// maxIdle is how much of one CPU the operator may use while nothing changes.
	maxIdle = 0.02
)

// BenchmarkLargeCluster measures an operator with 5,000 Nodes, 150,000 Pods and 3,000 shard
// groups: its memory, its processor time while only the heartbeats of Nodes arrive, and the
// requests of a change, compared with a cluster of 50 Nodes. It deletes nothing, so it must be the
// last benchmark.
func BenchmarkLargeCluster(b *testing.B) {
	require.True(b, tier.Full(), "%s is not set", tier.FullVariable)
	operator := mustImport(b).operator
	// It would mark Nodes as lost whose kubelets report only every five minutes.
	require.NoError(b, env.Component(controlplane.ControllerManager).Stop(b.Context()))
	kubelets := startKubelets(b)
	for b.Loop() {
		const few = 10
		scaleAll(b, 0, few, nodesPerGroup)
		kubelets.wait(b, few*nodesPerGroup)
		require.NoError(b, untilSynced(b.Context(), operator))
		small := countScaleUps(b, 0)

		scaleAll(b, few, groups, nodesPerGroup)
		kubelets.wait(b, groups*nodesPerGroup+samples*3)
		// It reconciles 1,000 MachinePools meanwhile, with half of the processors.
		capi := env.Component(controlplane.CAPI)
		require.NoError(b, capi.Stop(b.Context()))
		createPods(b)
		require.NoError(b, capi.Start(b.Context()))
		process := env.Component(component)
		require.NoError(b, process.Kill(b.Context()))
		require.NoError(b, process.Start(b.Context()))
		require.NoError(b, untilSynced(b.Context(), operator))
		large := countScaleUps(b, few)
		require.NoError(b, untilSynced(b.Context(), operator))
		idle := kubelets.measureIdle(b, operator)
		resident, peak, err := process.Memory()
		require.NoError(b, err)

		if peak > maxResident {
			b.Errorf("the operator had %.0f MiB resident, want at most %d", peak, maxResident)
		}
		if idle > maxIdle {
			b.Errorf("the idle operator used %.1f %% of a CPU, want at most %.0f", idle*100, maxIdle*100)
		}
		if large > small {
			b.Errorf("a scale-up cost %v requests with 5,000 Nodes, and %v with 50", large, small)
		}
		b.ReportMetric(resident, "MiB-resident")
		b.ReportMetric(peak, "MiB-peak")
		b.ReportMetric(idle*100, "idle-percent")
		b.ReportMetric(small, "requests-with-50-Nodes")
		b.ReportMetric(large, "requests-with-5000-Nodes")
	}
}

// scaleAll scales the MachinePools of the groups from first to end.
func scaleAll(b *testing.B, first, end int, replicas int32) {
	b.Helper()
	var scaling errgroup.Group
	scaling.SetLimit(writers)
	for i := first; i < end; i++ {
		scaling.Go(func() error { return scale(b.Context(), groupName(i), replicas) })
	}
	require.NoError(b, scaling.Wait())
}

func scale(ctx context.Context, group string, replicas int32) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := env.MachinePools().Patch(ctx, group, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// countScaleUps scales some groups up by three instances, one after the other, and returns
// how many requests the operator sent for one of them, other than for events: the median.
func countScaleUps(b *testing.B, first int) float64 {
	b.Helper()
	const replicas = nodesPerGroup + 3
	var counts []int
	for i := first; i < first+samples; i++ {
		from := env.AuditEnd(b)
		require.NoError(b, scale(b.Context(), groupName(i), replicas))
		err := poll(b.Context(), groupName(i)+" has its instances", func(ctx context.Context) error {
			return hasInstances(ctx, groupName(i), replicas)
		})
		require.NoError(b, err)
		requests := env.OperatorRequests(b, from, func(r controlplane.Request) bool { return r.Resource != "events" })
		b.Logf("%s: %d requests:%s", groupName(i), len(requests), testcluster.Describe(requests))
		counts = append(counts, len(requests))
	}
	// A status that arrives between two writes costs another request, with any number of Nodes.
	slices.Sort(counts)
	return float64(counts[len(counts)/2])
}

// hasInstances succeeds when a pool lists so many instances and its MachinePool as many Nodes.
func hasInstances(ctx context.Context, group string, replicas int32) error {
	pool, err := env.NstanceMachinePool(ctx, group)
	if err != nil {
		return err
	}
	machinePool, err := env.MachinePools().Get(ctx, group, metav1.GetOptions{})
	if err != nil {
		return err
	}
	instances, ready := len(pool.Spec.ProviderIDList), ptr.Deref(machinePool.Status.ReadyReplicas, 0)
	if instances != int(replicas) || ready != replicas {
		return fmt.Errorf("%d instances and %d ready Nodes, want %d", instances, ready, replicas)
	}
	return nil
}

// createPods gives each Node its Pods.
func createPods(b *testing.B) {
	b.Helper()
	nodes, err := env.NodeKube.CoreV1().Nodes().List(b.Context(), metav1.ListOptions{})
	require.NoError(b, err)
	var creating errgroup.Group
	creating.SetLimit(writers)
	for _, node := range nodes.Items[:groups*nodesPerGroup] {
		creating.Go(func() error {
			for i := range podsPerNode {
				pod := testcluster.NewUnrelatedPod(node.Name, i)
				pod.Spec.NodeName = node.Name
				if _, err := env.NodeKube.CoreV1().Pods("default").Create(b.Context(), pod, metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(b, creating.Wait())
}

// kubelets report the status of all Nodes.
type kubelets struct {
	nodes cache.Store
	ready atomic.Int64
}

// startKubelets reports each Node ready once, until the end of the benchmark.
func startKubelets(b *testing.B) *kubelets {
	b.Helper()
	factory := informers.NewSharedInformerFactory(env.NodeKube, 0)
	informer := factory.Core().V1().Nodes().Informer()
	k := &kubelets{nodes: informer.GetStore()}
	appeared := make(chan string)
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		select {
		case appeared <- object.(*corev1.Node).Name:
		case <-b.Context().Done():
		}
	}})
	require.NoError(b, err)
	factory.StartWithContext(b.Context())
	b.Cleanup(factory.Shutdown)
	var reporting errgroup.Group
	for range writers {
		reporting.Go(func() error {
			for {
				select {
				case <-b.Context().Done():
					return nil
				case name := <-appeared:
					if err := heartbeat(b.Context(), name); err != nil && b.Context().Err() == nil {
						return err
					}
					k.ready.Add(1)
				}
			}
		})
	}
	b.Cleanup(func() { require.NoError(b, reporting.Wait()) })
	return k
}

// wait waits until so many Nodes are ready.
func (k *kubelets) wait(b *testing.B, count int) {
	b.Helper()
	err := testcluster.Poll(b.Context(), time.Second, time.Hour, fmt.Sprintf("%d Nodes are ready", count), func(context.Context) error {
		if ready := k.ready.Load(); ready < int64(count) {
			return fmt.Errorf("%d are", ready)
		}
		return nil
	})
	require.NoError(b, err)
}

// measureIdle sends a heartbeat of each Node in idlePeriod, and returns how much of a CPU the operator
// used in this time.
func (k *kubelets) measureIdle(b *testing.B, operator installation.Operator) float64 {
	b.Helper()
	used := func() float64 {
		seconds, err := installation.Metric(b.Context(), operator.URL(), "process_cpu_seconds_total", nil)
		require.NoError(b, err)
		return seconds
	}
	names := k.nodes.ListKeys()
	ticks := time.NewTicker(idlePeriod / time.Duration(len(names)))
	defer ticks.Stop()
	before, begin := used(), time.Now()
	for _, name := range names {
		<-ticks.C
		require.NoError(b, heartbeat(b.Context(), name))
	}
	return (used() - before) / time.Since(begin).Seconds()
}

// heartbeat reports a Node ready.
func heartbeat(ctx context.Context, name string) error {
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, Reason: "KubeletReady",
	}}}})
	if err != nil {
		return err
	}
	_, err = env.NodeKube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("report Node %s ready: %w", name, err)
	}
	return nil
}
