// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

func TestMain(m *testing.M) {
	// The handler that slows errors down keeps the time of the last one, which
	// bubbles of virtual time do not share.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

var (
	pods  = corev1.SchemeGroupVersion.WithResource("pods")
	nodes = corev1.SchemeGroupVersion.WithResource("nodes")
)

// world is an API server with kubelets, and shard servers, all in memory, and a
// controller between them that can be replaced by a new one. It lives in a bubble
// of testing/synctest.
type world struct {
	*fake.Clientset
	*servers

	t          *testing.T
	controller *Controller
	recorder   *events.FakeRecorder
	stop       func()

	// watching is how many watches of Pods are open.
	watching atomic.Int32

	mu sync.Mutex
	// calls are what was asked of the API server by controllers, as verb and
	// resource, evictions the times at which each Pod was tried.
	calls     []string
	evictions map[string][]time.Time
	// refuse is what an eviction is refused with, by Pod; nil for not at all.
	refuse func(pod string) error
	// beforePatch happens once, right before a Node is patched.
	beforePatch func()
	// fail is asked before each call what it fails with.
	fail func(call string) error
}

// newWorld makes a world with objects and starts a controller.
func newWorld(t *testing.T, objects ...runtime.Object) *world {
	w := &world{
		Clientset: fake.NewClientset(objects...),
		t:         t,
		recorder:  events.NewFakeRecorder(100),
		evictions: map[string][]time.Time{},
		refuse:    func(string) error { return nil },
		fail:      func(string) error { return nil },
	}
	w.servers = &servers{world: w, notices: map[cache.ObjectName]shard.Notice{}, settled: map[string]bool{"a": true},
		instances: map[cache.ObjectName]shard.Instance{}, hang: func(string) {}}
	w.PrependReactor("list", "pods", w.listPods)
	w.PrependWatchReactor("pods", w.watchPods)
	w.PrependReactor("create", "pods", w.evict)
	w.PrependReactor("patch", "nodes", w.patchNode)
	w.PrependReactor("*", "*", w.called)
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start starts a controller that remembers nothing of a former one.
func (w *world) start() {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), ktesting.NewLogger(w.t, ktesting.NewConfig(ktesting.Verbosity(0)))))
	factory := kubeinformers.NewSharedInformerFactory(w.Clientset, 0)
	c, registrations, err := New(w.Clientset, factory.Core().V1().Nodes().Informer(), factory.Storage().V1().VolumeAttachments().Informer(),
		w.servers, w.servers, w.recorder, clock.RealClock{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.controller = c
	factory.StartWithContext(ctx)
	for _, registration := range registrations {
		<-registration.HasSyncedChecker().Done()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		factory.Shutdown()
	})
	// The watch of the servers tells of every notice when it is opened.
	for key := range w.all() {
		c.InstanceChanged(key.Namespace, key.Name)
	}
}

// called sees every call, the informers' lists of Nodes included.
func (w *world) called(action clienttesting.Action) (bool, runtime.Object, error) {
	call := action.GetVerb() + " " + action.GetResource().Resource
	if action.GetSubresource() != "" {
		call += "/" + action.GetSubresource()
	}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	fail := w.fail
	w.mu.Unlock()
	err := fail(call)
	return err != nil, nil, err
}

// count is how often one of calls was made since the last reset.
func (w *world) count(calls ...string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, call := range w.calls {
		if slices.Contains(calls, call) {
			n++
		}
	}
	return n
}

func (w *world) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = nil
}

// onNode is the Node that a selector of fields limits Pods to.
func onNode(restrictions string) string {
	name, _ := strings.CutPrefix(restrictions, "spec.nodeName=")
	return name
}

func (w *world) listPods(action clienttesting.Action) (bool, runtime.Object, error) {
	node := onNode(action.(clienttesting.ListAction).GetListRestrictions().Fields.String())
	list, err := w.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		return true, nil, err
	}
	all := list.(*corev1.PodList)
	all.Items = slices.DeleteFunc(all.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName != node })
	return true, all, nil
}

func (w *world) watchPods(action clienttesting.Action) (bool, watch.Interface, error) {
	// Watches are not among what the other reactors see.
	if failed, _, err := w.called(action); failed {
		return true, nil, err
	}
	node := onNode(action.(clienttesting.WatchAction).GetWatchRestrictions().Fields.String())
	all, err := w.Tracker().Watch(pods, "")
	if err != nil {
		return true, nil, err
	}
	list, err := w.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		return true, nil, err
	}
	w.watching.Add(1)
	return true, only(all, node, list.(*corev1.PodList).Items, func() { w.watching.Add(-1) }), nil
}

// only is a watch of the Pods of one Node. It begins with what they are now,
// because the one in memory leaves out what happened since the list. And it can be
// stopped in the middle of an event, which that of watch.Filter cannot.
func only(all watch.Interface, node string, now []corev1.Pod, done func()) watch.Interface {
	events := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(events)
	go func() {
		defer done()
		defer all.Stop()
		for i := range now {
			if !send(proxy, events, node, watch.Event{Type: watch.Modified, Object: &now[i]}) {
				return
			}
		}
		for {
			select {
			case event := <-all.ResultChan():
				if !send(proxy, events, node, event) {
					return
				}
			case <-proxy.StopChan():
				return
			}
		}
	}()
	return proxy
}

// unseen is the annotation of a Pod that watches do not show yet.
const unseen = "unseen"

// send sends an event if it is about a Pod of the Node, and tells whether the watch
// goes on.
func send(proxy *watch.ProxyWatcher, events chan<- watch.Event, node string, event watch.Event) bool {
	if pod, ok := event.Object.(*corev1.Pod); !ok || pod.Spec.NodeName != node || pod.Annotations[unseen] != "" {
		return true
	}
	select {
	case events <- event:
		return true
	case <-proxy.StopChan():
		return false
	}
}

// evict is the API server and the kubelet. A Pod ends when its grace period is
// over, unless its Node cannot be reached.
func (w *world) evict(action clienttesting.Action) (bool, runtime.Object, error) {
	eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
	w.mu.Lock()
	tries := w.evictions[eviction.Name]
	now := time.Now()
	if len(tries) > 0 && now.Sub(tries[len(tries)-1]) < time.Second {
		w.t.Errorf("Pod %s is tried at %s and %s", eviction.Name, tries[len(tries)-1], now)
	}
	w.evictions[eviction.Name] = append(tries, now)
	err := w.refuse(eviction.Name)
	w.mu.Unlock()
	if err != nil {
		return true, nil, err
	}
	grace := ptr.Deref(eviction.DeleteOptions.GracePeriodSeconds, 0)
	if grace < 1 {
		w.t.Errorf("Pod %s is evicted with grace %d", eviction.Name, grace)
	}
	object, err := w.Tracker().Get(pods, eviction.Namespace, eviction.Name)
	if err != nil {
		return true, nil, err
	}
	pod := object.(*corev1.Pod).DeepCopy()
	if uid := eviction.DeleteOptions.Preconditions.UID; uid == nil || *uid != pod.UID {
		return true, nil, apierrors.NewConflict(pods.GroupResource(), pod.Name, fmt.Errorf("uid is %s", pod.UID))
	}
	if pod.DeletionTimestamp != nil {
		return true, nil, nil
	}
	end := time.Duration(grace) * time.Second
	pod.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(end)))
	if err := w.Tracker().Update(pods, pod, pod.Namespace); err != nil {
		return true, nil, err
	}
	if node, err := w.Tracker().Get(nodes, "", pod.Spec.NodeName); err == nil && !unreachable(node.(*corev1.Node)) {
		time.AfterFunc(end, func() { _ = w.Tracker().Delete(pods, pod.Namespace, pod.Name) })
	}
	return true, nil, nil
}

// patchNode refuses an apply that could make a Node, or change its successor, or a
// version that is not the last.
func (w *world) patchNode(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchAction)
	var applied metav1.PartialObjectMetadata
	if err := json.Unmarshal(patch.GetPatch(), &applied); err != nil {
		return true, nil, err
	}
	if patch.GetPatchType() != types.ApplyPatchType || applied.UID == "" {
		w.t.Errorf("Node %s is changed by %s", patch.GetName(), patch.GetPatch())
	}
	if w.beforePatch != nil {
		w.beforePatch()
		w.beforePatch = nil
	}
	if applied.ResourceVersion != "" && applied.ResourceVersion != w.node(patch.GetName()).ResourceVersion {
		return true, nil, apierrors.NewConflict(nodes.GroupResource(), patch.GetName(), errors.New("there is a later version"))
	}
	return false, nil, nil
}

// node is the Node as the API server has it.
func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	object, err := w.Tracker().Get(nodes, "", name)
	if err != nil {
		w.t.Fatal(err)
	}
	return object.(*corev1.Node)
}

// change changes a Node as somebody else does.
func (w *world) change(name string, change func(*corev1.Node)) {
	w.t.Helper()
	node := w.node(name).DeepCopy()
	change(node)
	if _, err := w.CoreV1().Nodes().Update(context.Background(), node, metav1.UpdateOptions{FieldManager: "kubectl"}); err != nil {
		w.t.Fatal(err)
	}
}

// cordoned is how a Node is: "no", "ours" or "foreign".
func (w *world) cordoned(name string) string {
	node := w.node(name)
	_, marked := node.Annotations[v1beta1.AnnotationCordonedFor]
	switch {
	case marked != node.Spec.Unschedulable && marked:
		return "marked only"
	case marked:
		return "ours"
	case node.Spec.Unschedulable:
		return "foreign"
	}
	return "no"
}

// recorded are the events since the last call.
func (w *world) recorded() []string {
	var all []string
	for {
		select {
		case event := <-w.recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

// after lets time pass, and then everything come to rest.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// servers are the shard servers, and the cache of their notices.
type servers struct {
	world *world

	mu      sync.Mutex
	notices map[cache.ObjectName]shard.Notice
	settled map[string]bool
	// instances answer Instance, acks are the acknowledgements by time.
	instances map[cache.ObjectName]shard.Instance
	acks      []string
	asked     int
	// down is what calls fail with. hang is called in each acknowledgement of a shard.
	down error
	hang func(shard string)
}

func (s *servers) all() map[cache.ObjectName]shard.Notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[cache.ObjectName]shard.Notice{}
	for key, notice := range s.notices {
		all[key] = notice
	}
	return all
}

func (s *servers) Get(id, instance string) (shard.Notice, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	notice, ok := s.notices[cache.NewObjectName(id, instance)]
	return notice, ok
}

func (s *servers) List(id string) []shard.Notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []shard.Notice
	for key, notice := range s.notices {
		if key.Namespace == id {
			list = append(list, notice)
		}
	}
	return list
}

func (s *servers) Settled(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settled[id]
}

func (s *servers) AcknowledgeDrained(_ context.Context, id, instance string) error {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	hang(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	key := cache.NewObjectName(id, instance)
	if s.down != nil {
		return s.down
	}
	notice := s.notices[key]
	if time.Now().Before(notice.DeleteAt) || notice.DeleteAt.IsZero() {
		s.check(notice)
	}
	s.acks = append(s.acks, instance)
	return nil
}

// check fails the test when an evictable Pod is on the Node of an instance that is
// acknowledged in time.
func (s *servers) check(notice shard.Notice) {
	list, err := s.world.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		s.world.t.Error(err)
		return
	}
	for _, pod := range list.(*corev1.PodList).Items {
		if pod.Spec.NodeName == strings.TrimPrefix(notice.ProviderID, "kwok:///") && pod.Labels["leaves"] == "yes" {
			s.world.t.Errorf("instance %s is acknowledged while Pod %s is on its Node", notice.InstanceID, pod.Name)
		}
	}
}

func (s *servers) Instance(_ context.Context, id, instance string) (shard.Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.down != nil {
		return shard.Instance{}, s.down
	}
	found, ok := s.instances[cache.NewObjectName(id, instance)]
	if !ok {
		return shard.Instance{}, errNotFound
	}
	return found, nil
}

// acknowledged are the instances that were, in order.
func (s *servers) acknowledged() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.acks)
}

// tell has the shard announce the drain of the instance behind a Node, or
// announce it again.
func (w *world) tell(node string, deleteAt time.Time) {
	key := cache.NewObjectName("a", "i-"+node)
	w.servers.mu.Lock()
	notice := w.notices[key]
	w.notices[key] = shard.Notice{InstanceID: key.Name, ProviderID: "kwok:///" + node, Group: "workers", State: shard.Draining,
		Reason: "scale-down", Since: time.Now(), DeleteAt: deleteAt, Announced: notice.Announced + 1}
	w.servers.mu.Unlock()
	w.controller.InstanceChanged("a", key.Name)
}

// drop has the shard withdraw a notice.
func (w *world) drop(node string) {
	w.servers.mu.Lock()
	delete(w.notices, cache.NewObjectName("a", "i-"+node))
	w.servers.mu.Unlock()
	w.controller.InstanceChanged("a", "i-"+node)
}

// shardIs sets what calls fail with.
func (w *world) shardIs(down error) {
	w.servers.mu.Lock()
	defer w.servers.mu.Unlock()
	w.down = down
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name)},
		Spec:       corev1.NodeSpec{ProviderID: "kwok:///" + name},
	}
}

// newPod is a Pod on a Node that a ReplicaSet owns and that has to leave.
func newPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{"leaves": "yes"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](5)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// newAgent is a Pod on a Node that the DaemonSet "agent" owns.
func newAgent(name, node string) *corev1.Pod {
	pod := newPod(name, node)
	pod.Labels = nil
	pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "DaemonSet", "agent"
	return pod
}

func newDaemonSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent"}}
}
