// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/testing/runtest"
)

func TestMain(m *testing.M) {
	// The handler that delays errors keeps the time of the last error, which bubbles of
	// virtual time do not share.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// harness is an API server with kubelets, the shards "a" and "b", and a running
// controller, which can be restarted. It is used in a bubble of testing/synctest.
type harness struct {
	*apiServer

	t          *testing.T
	shards     *shardtest.Shards
	fakes      *controllertest.Harness
	controller *Controller
	registry   *prometheus.Registry
	stop       func()

	// rules is the cache of MachineDrainRules, machines the cache of Machines.
	rules, machines *cacheInformer

	// log collects what the controller logs after the next start; nil for the test's log.
	log *audittest.Log
	// addresses are the addresses of the instances that are announced.
	addresses []string
	// incomplete starts the controller before its caches are complete.
	incomplete bool
	// beforeVersion is called when the controller reads how new its cache of Nodes is, nil for
	// nothing.
	beforeVersion func()

	// delayAcknowledgement is called during each acknowledgement, with the shard.
	delayAcknowledgement func(shard string)
}

// hookedInformer calls a function before its store returns its resource version.
type hookedInformer struct {
	cache.SharedIndexInformer
	beforeVersion func()
}

type hookedStore struct {
	cache.Store
	beforeVersion func()
}

func (i hookedInformer) GetStore() cache.Store {
	return hookedStore{i.SharedIndexInformer.GetStore(), i.beforeVersion}
}

func (s hookedStore) LastStoreSyncResourceVersion() string {
	s.beforeVersion()
	return s.Store.LastStoreSyncResourceVersion()
}

// newHarness starts a controller with objects on the API server.
func newHarness(t *testing.T, objects ...runtime.Object) *harness {
	h := &harness{
		apiServer:            newAPIServer(t, objects...),
		t:                    t,
		shards:               shardtest.New("a", "b"),
		delayAcknowledgement: func(string) {},
	}
	h.fakes = controllertest.NewHarness(t, h.shards)
	h.rules = &cacheInformer{SharedIndexInformer: h.fakes.Informers.MachineDrainRules}
	h.machines = &cacheInformer{SharedIndexInformer: h.fakes.Informers.Machines.SharedIndexInformer}
	h.fakes.Informers.MachineDrainRules, h.fakes.Informers.Machines.SharedIndexInformer = h.rules, h.machines
	h.fakes.Workload.Kube, h.fakes.Clock = h.Clientset, clock.RealClock{}
	h.shards.OnCall = h.shardCalled
	h.start()
	return h
}

// start starts a controller without the state of the previous controller.
func (h *harness) start() {
	factory := kubeinformers.NewSharedInformerFactory(h.Clientset, 0)
	h.registry = prometheus.NewRegistry()
	h.fakes.Metrics = h.registry
	h.fakes.Informers.Nodes = factory.Core().V1().Nodes().Informer()
	if h.beforeVersion != nil {
		h.fakes.Informers.Nodes = hookedInformer{h.fakes.Informers.Nodes, h.beforeVersion}
	}
	h.fakes.Informers.VolumeAttachments = factory.Storage().V1().VolumeAttachments().Informer()
	c, err := New(h.fakes.Dependencies)
	require.NoError(h.t, err)
	h.controller = c
	synced := make(chan struct{})
	h.stop = runtest.Start(h.t, func(ctx context.Context) {
		if h.log != nil {
			ctx = h.log.Context(ctx)
		}
		factory.StartWithContext(ctx)
		defer factory.Shutdown()
		if !h.incomplete {
			cache.WaitFor(ctx, "caches", c.HasSynced()...)
		}
		close(synced)
		c.Run(ctx)
	})
	<-synced
	// A watch of notices starts with all of them.
	for id := range h.shards.ByID {
		for _, notice := range h.shards.Notices().List(id) {
			h.shards.NotifyInstance(id, notice.InstanceID)
		}
	}
}

// shardCalled handles a call such as "acknowledge i-n1 on a" before the shard does. An
// acknowledgement before the deadline fails the test while an evictable Pod is on
// the Node.
func (h *harness) shardCalled(call string) {
	words := strings.Fields(call)
	if words[0] != "acknowledge" {
		return
	}
	instance, id := words[1], words[3]
	h.mu.Lock()
	delay := h.delayAcknowledgement
	h.mu.Unlock()
	delay(id)
	notice, _ := h.shards.Notices().Get(id, instance)
	if !notice.Deadline.IsZero() && !time.Now().Before(notice.Deadline) {
		return
	}
	for _, pod := range h.listPods() {
		if pod.Spec.NodeName == strings.TrimPrefix(notice.ProviderID, "kwok:///") && pod.Labels["leaves"] == "yes" {
			h.t.Errorf("instance %s is acknowledged while Pod %s is on its Node", instance, pod.Name)
		}
	}
}

// announce makes shard a report that the instance of a Node is to be deleted, or
// report it again.
func (h *harness) announce(node string, deleteAt time.Time) { h.announceOn("a", node, deleteAt) }

// announceOn is announce for any shard.
func (h *harness) announceOn(id, node string, deleteAt time.Time) {
	instance := "i-" + node
	h.shards.Update(func() {
		notices := h.shards.ByID[id].Notices
		notices[instance] = shard.DeletionNotice{InstanceID: instance, ProviderID: "kwok:///" + node, Addresses: h.addresses, Group: "workers", State: shard.Draining,
			Reason: "scale-down", Since: time.Now(), DeleteAt: deleteAt, Deadline: deleteAt, Announced: notices[instance].Announced + 1}
	})
	h.shards.NotifyInstance(id, instance)
}

// startDeletion makes shard a report that it is deleting the instance of a Node.
func (h *harness) startDeletion(node string) {
	h.shards.Update(func() {
		notices := h.shards.ByID["a"].Notices
		notice := notices["i-"+node]
		notice.State = shard.Deleting
		notices["i-"+node] = notice
	})
	h.shards.NotifyInstance("a", "i-"+node)
}

// withdraw makes shard a withdraw the notice about the instance of a Node.
func (h *harness) withdraw(node string) { h.withdrawOn("a", node) }

// withdrawOn is withdraw for any shard.
func (h *harness) withdrawOn(id, node string) {
	h.shards.Update(func() { delete(h.shards.ByID[id].Notices, "i-"+node) })
	h.shards.NotifyInstance(id, "i-"+node)
}

// setInstance sets the reply of a shard to queries of the instance of Node n1.
func (h *harness) setInstance(id string, instance shard.Instance) {
	h.shards.Update(func() { h.shards.ByID[id].Instances["i-n1"] = instance })
}

// setShardError sets the error of all calls to shards.
func (h *harness) setShardError(err error) {
	h.shards.Update(func() { h.shards.Fail["acknowledge"], h.shards.Fail["get"] = err, err })
}

// expectAcknowledged compares the acknowledged instances, in order.
func (h *harness) expectAcknowledged(instances ...string) {
	h.t.Helper()
	assert.Equal(h.t, instances, h.shards.Acknowledged(), "acknowledged")
}

// blockedDrains returns the number of blocked drains of the group on shard a, and their
// messages.
func (h *harness) blockedDrains() (blocked int, messages string) {
	_, blocked, list := h.controller.Summary("a", "workers")
	for i := range list {
		messages += list[i].Message + "\n"
	}
	return blocked, messages
}

// expectCordonedBy compares the client that has cordoned a Node: "operator", "user" or "none".
func (h *harness) expectCordonedBy(name, want string) {
	h.t.Helper()
	node := h.node(name)
	_, annotated := node.Annotations[v1beta1.AnnotationCordonedFor]
	got := "none"
	switch {
	case annotated && !node.Spec.Unschedulable:
		got = "none, but it has the annotation"
	case annotated:
		got = "operator"
	case node.Spec.Unschedulable:
		got = "user"
	}
	assert.Equal(h.t, want, got, "Node %s is cordoned by", name)
}

// warnings returns the events of type Warning since the last call of this or fakes.Events.
func (h *harness) warnings() []string {
	return slices.DeleteFunc(h.fakes.Events(), func(event string) bool { return !strings.HasPrefix(event, "Warning ") })
}

// addNode creates a Node.
func (h *harness) addNode(node *corev1.Node) {
	h.t.Helper()
	_, err := h.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{})
	require.NoError(h.t, err)
}

// deleteNode deletes a Node.
func (h *harness) deleteNode(name string) {
	h.t.Helper()
	require.NoError(h.t, h.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}))
}

// updateNode changes the Node n1 as another client.
func (h *harness) updateNode(change func(*corev1.Node)) {
	h.t.Helper()
	node := h.node("n1").DeepCopy()
	change(node)
	_, err := h.CoreV1().Nodes().Update(context.Background(), node, metav1.UpdateOptions{FieldManager: "kubectl"})
	require.NoError(h.t, err)
}

// advance advances the time and waits until all goroutines are blocked.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
