// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package controllertest gives the tests of controllers an API server in memory, and caches
// that are as stale as a test needs.
package controllertest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/generated/clientset/versioned/fake"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	infrastructure "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/metricstest"
)

const (
	// Namespace is the namespace of the harness's objects.
	Namespace = "default"
	// ClusterName is the name of the Cluster of the harness.
	ClusterName = "cluster--default"
)

// Harness implements all dependencies of a controller in memory. Its informers are never
// started: Show and Put fill their caches.
type Harness struct {
	*API
	// Dependencies are passed to the controller under test. A test may replace fields before
	// that.
	controllers.Dependencies

	T testing.TB
	// Ctx has a logger that writes to the log of the test.
	Ctx context.Context
	// CAPI is the API server of Cluster API's kinds.
	CAPI *CAPI
	// KubeClient is the API server of the built-in kinds.
	KubeClient *kubefake.Clientset
	// Fake has the shards of Dependencies, unless a test replaces them there.
	Fake *shardtest.Shards
	// Fake has the shards of Dependencies, unless a test replaces them there.
	FakeClock *clocktesting.FakePassiveClock

	// SyncKey syncs the object of the test once.
	SyncKey func() (time.Duration, error)
	// Shown is called after each Show, nil for nothing. The informers call no handlers.
	Shown func()

	recorder *events.FakeRecorder
	registry *prometheus.Registry
}

// NewHarness returns a harness whose API server and caches contain objects of our kinds.
func NewHarness(t testing.TB, shards *shardtest.Shards, objects ...runtime.Object) *Harness {
	t.Helper()
	h := &Harness{
		API:        NewAPI(t, objects...),
		T:          t,
		Ctx:        klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())),
		CAPI:       NewCAPI(t),
		KubeClient: kubefake.NewClientset(),
		Fake:       shards,
		FakeClock:  clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		recorder:   events.NewFakeRecorder(10_000),
		registry:   prometheus.NewRegistry(),
	}
	kube := kubeinformers.NewSharedInformerFactory(h.KubeClient, 0)
	h.Dependencies = controllers.Dependencies{
		Namespace:   Namespace,
		ClusterName: ClusterName,
		Kube:        h.KubeClient,
		Nstance:     h.InfrastructureV1beta1(),
		CAPI:        h.CAPI.Client,
		Workload: controllers.Workload{
			Kube:     h.KubeClient,
			Metadata: metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()),
		},
		Informers: controllers.Informers{
			Nstance:           h.NewInformers(),
			Clusters:          capi.NewClusterInformer(h.CAPI.Client, Namespace, 0),
			MachinePools:      capi.NewMachinePoolInformer(h.CAPI.Client, Namespace, 0),
			Machines:          capi.NewMachineInformer(h.CAPI.Client, Namespace, 0),
			MachineDrainRules: capi.NewMachineDrainRuleInformer(h.CAPI.Client, Namespace, 0),
			Nodes:             kube.Core().V1().Nodes().Informer(),
			VolumeAttachments: kube.Storage().V1().VolumeAttachments().Informer(),
			Kubeconfig:        kube.Core().V1().Secrets().Informer(),
		},
		Shards:      shards,
		NamedShards: shards,
		ShardClient: shards,
		Groups:      shards.Groups(),
		Notices:     shards.Notices(),
		Recorder:    h.recorder,
		Clock:       h.FakeClock,
		Metrics:     h.registry,
	}
	// A synced cache knows a resource version, even if it is empty.
	for _, informer := range []cache.SharedIndexInformer{h.Informers.MachinePools, h.Informers.Machines, h.Informers.Clusters} {
		require.NoError(t, informer.GetIndexer().Replace(nil, "1"))
	}
	h.Show()
	return h
}

// UseServers connects the controller to real shard servers instead of Fake.
func (h *Harness) UseServers(s *shardtest.Servers) {
	h.Shards, h.NamedShards, h.ShardClient = s.Pool, s.Pool, s.Pool
	h.Groups, h.Notices = s.Groups, s.Notices
}

// Show makes the caches of our kinds equal to the API server.
func (h *Harness) Show() {
	h.T.Helper()
	h.API.Show(h.Informers.Nstance)
	if h.Shown != nil {
		h.Shown()
	}
}

// Put adds objects to the cache of an informer, or replaces them there.
func (h *Harness) Put(informer cache.SharedIndexInformer, objects ...any) {
	h.T.Helper()
	for _, object := range objects {
		require.NoError(h.T, informer.GetIndexer().Update(object))
	}
}

// Remove removes objects from the cache of an informer.
func (h *Harness) Remove(informer cache.SharedIndexInformer, objects ...any) {
	h.T.Helper()
	for _, object := range objects {
		require.NoError(h.T, informer.GetIndexer().Delete(object))
	}
}

// Advance moves FakeClock forward.
func (h *Harness) Advance(d time.Duration) { h.FakeClock.SetTime(h.FakeClock.Now().Add(d)) }

// Events returns the events since the last call.
func (h *Harness) Events() []string { return Recorded(h.recorder) }

// requestID matches the request id in the note of an event.
var requestID = regexp.MustCompile("requestID [0-9a-f-]{36}")

// Recorded returns the events since the last call. Random request ids are replaced by ID.
func Recorded(recorder *events.FakeRecorder) []string {
	var recorded []string
	for {
		select {
		case event := <-recorder.Events:
			recorded = append(recorded, requestID.ReplaceAllString(event, "requestID ID"))
		default:
			return recorded
		}
	}
}

// ExpectEvents compares the events since the last call.
func (h *Harness) ExpectEvents(want ...string) {
	h.T.Helper()
	assert.Equal(h.T, want, h.Events(), "recorded")
}

// Registry has the metrics of the controller.
func (h *Harness) Registry() prometheus.Gatherer { return h.registry }

// ExpectSeries compares all metrics of the controller (metricstest.Series).
func (h *Harness) ExpectSeries(want ...string) {
	h.T.Helper()
	assert.Equal(h.T, want, metricstest.Series(h.T, h.registry), "series")
}

// Sync makes the caches equal to the API server and calls SyncStale.
func (h *Harness) Sync() (did []string, requeue time.Duration, err error) {
	h.T.Helper()
	h.Show()
	return h.SyncStale()
}

// SyncStale calls SyncKey and returns what it did: calls to shards, writes of our kinds and
// writes of Cluster API's kinds.
func (h *Harness) SyncStale() (did []string, requeue time.Duration, err error) {
	h.T.Helper()
	requeue, err = h.SyncKey()
	did = slices.Concat(h.Fake.Calls(), h.Writes(), h.CAPI.Changed)
	h.CAPI.Changed = nil
	return did, requeue, err
}

// Expect calls Sync, which must succeed, and compares what it did.
func (h *Harness) Expect(want ...string) (requeue time.Duration) {
	h.T.Helper()
	did, requeue, err := h.Sync()
	require.NoError(h.T, err)
	assert.Equal(h.T, want, did, "did")
	return requeue
}

// Key returns the key of an object in Namespace.
func Key(name string) cache.ObjectName { return cache.NewObjectName(Namespace, name) }

// API is an API server for our kinds in memory.
type API struct {
	*fake.Clientset
	*apitest.Server

	t testing.TB
}

// NewAPI returns an API that contains objects, each with a generation and a uid.
func NewAPI(t testing.TB, objects ...runtime.Object) *API {
	clientset := fake.NewClientset()
	return &API{Clientset: clientset, Server: apitest.NewServer(t, clientset, objects...), t: t}
}

// NewInformers returns informers of our kinds that are never started. Show fills their caches.
func (a *API) NewInformers() infrastructure.Interface {
	return externalversions.NewSharedInformerFactory(a, 0).Infrastructure().V1beta1()
}

// Show makes the caches of informers equal to the content of the API server. Until then they
// are stale, as real caches are after a write.
func (a *API) Show(informers infrastructure.Interface) {
	a.t.Helper()
	client := a.InfrastructureV1beta1()
	pools, poolsErr := client.NstanceMachinePools(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	groups, groupsErr := client.NstanceShardGroups(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	machines, machinesErr := client.NstanceMachines(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	clusters, clustersErr := client.NstanceClusters(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	templates, templatesErr := client.NstanceMachineTemplates(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	require.NoError(a.t, errors.Join(poolsErr, groupsErr, machinesErr, clustersErr, templatesErr))
	replace(a, informers.NstanceMachinePools().Informer(), pools.Items)
	replace(a, informers.NstanceShardGroups().Informer(), groups.Items)
	replace(a, informers.NstanceMachines().Informer(), machines.Items)
	replace(a, informers.NstanceClusters().Informer(), clusters.Items)
	replace(a, informers.NstanceMachineTemplates().Informer(), templates.Items)
}

func replace[T any](a *API, informer cache.SharedIndexInformer, items []T) {
	a.t.Helper()
	objects := make([]any, len(items))
	for i := range items {
		objects[i] = &items[i]
	}
	require.NoError(a.t, informer.GetIndexer().Replace(objects, a.Version()))
}

// Enqueued returns the names of the keys that change enqueues, and when, sorted, such as
// "workers at 1s". It replaces queue, the controller's queue.
func Enqueued[Key comparable](t *testing.T, queue **controller.Queue[Key], change func()) []string {
	t.Helper()
	var enqueued []string
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		*queue = controller.NewQueue("test", func(_ context.Context, key Key) (time.Duration, error) {
			enqueued = append(enqueued, fmt.Sprintf("%s at %s", path.Base(fmt.Sprint(key)), time.Since(start)))
			return 0, nil
		})
		change()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		(*queue).Run(ctx, 1)
	})
	slices.Sort(enqueued)
	return enqueued
}
