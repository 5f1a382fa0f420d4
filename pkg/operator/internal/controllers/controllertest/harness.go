// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllertest

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// Harness has everything that a controller depends on, in memory. Its informers
// are never started: their caches contain what Show and Put put there, and so are
// as stale as a test wants.
type Harness struct {
	*API
	// Dependencies are those of the controller under test. A test may replace
	// fields of it before it constructs the controller.
	controllers.Dependencies

	T testing.TB
	// Ctx has a logger that writes to the test.
	Ctx context.Context
	// CAPI is the API server of Cluster API's kinds.
	CAPI *CAPI
	// KubeClient is the API server of the built-in kinds.
	KubeClient *kubefake.Clientset
	// Fake are the shards, unless a test replaces those of Dependencies.
	Fake *shardtest.Shards
	// FakeClock stands at the start of 2026.
	FakeClock *clocktesting.FakePassiveClock

	// SyncKey syncs the object of the test once.
	SyncKey func() (time.Duration, error)

	recorder *events.FakeRecorder
	registry *prometheus.Registry
}

// NewHarness returns a harness whose API server and caches have objects of our
// kinds.
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
	// A cache that has synced knows its resource version, empty or not.
	for _, informer := range []cache.SharedIndexInformer{h.Informers.MachinePools, h.Informers.Machines, h.Informers.Clusters} {
		require.NoError(t, informer.GetIndexer().Replace(nil, "1"))
	}
	h.Show()
	return h
}

// UseServers has the controller work with real shard servers.
func (h *Harness) UseServers(s *shardtest.Servers) {
	h.Shards, h.NamedShards, h.ShardClient = s.Pool, s.Pool, s.Pool
	h.Groups, h.Notices = s.Groups, s.Notices
}

// Show makes the caches of our kinds equal to the API server.
func (h *Harness) Show() {
	h.T.Helper()
	h.API.Show(h.Informers.Nstance)
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

// Events returns the events that were recorded since the last call.
func (h *Harness) Events() []string { return Recorded(h.recorder) }

// requestID matches the request id in the note of an event.
var requestID = regexp.MustCompile("requestID [0-9a-f-]{36}")

// Recorded returns the events that were recorded since the last call. Request ids, which are
// random, are replaced by ID.
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

// Sync is SyncStale with caches that show what there is.
func (h *Harness) Sync() (did []string, requeue time.Duration, err error) {
	h.T.Helper()
	h.Show()
	return h.SyncStale()
}

// SyncStale calls SyncKey and returns what it did: the calls to shards, the writes of our
// kinds, and those of Cluster API's.
func (h *Harness) SyncStale() (did []string, requeue time.Duration, err error) {
	h.T.Helper()
	requeue, err = h.SyncKey()
	did = slices.Concat(h.Fake.Calls(), h.Writes(), h.CAPI.Changed)
	h.CAPI.Changed = nil
	return did, requeue, err
}

// Expect calls Sync, which must not fail, and compares what it did.
func (h *Harness) Expect(want ...string) (requeue time.Duration) {
	h.T.Helper()
	did, requeue, err := h.Sync()
	require.NoError(h.T, err)
	assert.Equal(h.T, want, did, "did")
	return requeue
}

// Key is the key of an object in Namespace.
func Key(name string) cache.ObjectName { return cache.NewObjectName(Namespace, name) }
