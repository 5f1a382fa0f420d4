// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

var (
	pods  = corev1.SchemeGroupVersion.WithResource("pods")
	nodes = corev1.SchemeGroupVersion.WithResource("nodes")
)

// apiServer is an API server with kubelets: an evicted Pod is deleted when its grace
// period is over. Lists and watches of Pods respect the field selector.
type apiServer struct {
	*fake.Clientset
	t *testing.T

	// openWatches is the number of open watches of Pods.
	openWatches atomic.Int32
	// patches is the number of patches of Nodes.
	patches atomic.Int64

	mu sync.Mutex
	// requests are the requests of controllers, each as verb and resource.
	requests []string
	// evictions are the times of the attempts to evict each Pod.
	evictions map[string][]time.Time
	// rejectEviction returns the error for the eviction of a Pod, nil to accept it.
	rejectEviction func(pod string) error
	// failRequest returns the error for a request, nil to answer it.
	failRequest func(request string) error
	// beforePatch is called once, before the next patch of a Node.
	beforePatch func()
}

func newAPIServer(t *testing.T, objects ...runtime.Object) *apiServer {
	s := &apiServer{
		Clientset:      fake.NewClientset(objects...),
		t:              t,
		evictions:      map[string][]time.Time{},
		rejectEviction: func(string) error { return nil },
		failRequest:    func(string) error { return nil },
	}
	s.PrependReactor("list", "pods", s.reactToListPods)
	s.PrependWatchReactor("pods", s.reactToWatchPods)
	s.PrependReactor("create", "pods", s.reactToEviction)
	s.PrependReactor("patch", "nodes", s.reactToPatchNode)
	s.PrependReactor("*", "*", s.reactToRequest)
	return s
}

// reactToRequest records all requests, including the requests of informers.
func (s *apiServer) reactToRequest(action clienttesting.Action) (bool, runtime.Object, error) {
	request := action.GetVerb() + " " + action.GetResource().Resource
	if action.GetSubresource() != "" {
		request += "/" + action.GetSubresource()
	}
	s.mu.Lock()
	s.requests = append(s.requests, request)
	fail := s.failRequest
	s.mu.Unlock()
	err := fail(request)
	return err != nil, nil, err
}

// count returns how many of the given requests were made since the last reset.
func (s *apiServer) count(requests ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, request := range s.requests {
		if slices.Contains(requests, request) {
			n++
		}
	}
	return n
}

// resetRequests clears the record of requests.
func (s *apiServer) resetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// allowEvictions stops the rejection of evictions.
func (s *apiServer) allowEvictions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejectEviction = func(string) error { return nil }
}

// stopFailures stops the failure of requests.
func (s *apiServer) stopFailures() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failRequest = func(string) error { return nil }
}

// node returns a Node as the API server has it.
func (s *apiServer) node(name string) *corev1.Node {
	s.t.Helper()
	object, err := s.Tracker().Get(nodes, "", name)
	require.NoError(s.t, err)
	return object.(*corev1.Node)
}

// listPods returns all Pods as the API server has them.
func (s *apiServer) listPods() []corev1.Pod {
	s.t.Helper()
	list, err := s.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		s.t.Error(err)
		return nil
	}
	return list.(*corev1.PodList).Items
}

// addPod creates a Pod.
func (s *apiServer) addPod(pod *corev1.Pod) {
	s.t.Helper()
	require.NoError(s.t, s.Tracker().Add(pod))
}

// deletePod deletes the Pod web-0.
func (s *apiServer) deletePod() {
	s.t.Helper()
	require.NoError(s.t, s.Tracker().Delete(pods, "default", "web-0"))
}

// selectedNode returns the Node of a field selector.
func selectedNode(selector string) string {
	name, _ := strings.CutPrefix(selector, "spec.nodeName=")
	return name
}

func (s *apiServer) reactToListPods(action clienttesting.Action) (bool, runtime.Object, error) {
	node := selectedNode(action.(clienttesting.ListAction).GetListRestrictions().Fields.String())
	list, err := s.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		return true, nil, err
	}
	selected := list.(*corev1.PodList)
	selected.Items = slices.DeleteFunc(selected.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName != node })
	return true, selected, nil
}

func (s *apiServer) reactToWatchPods(action clienttesting.Action) (bool, watch.Interface, error) {
	// The other reactors are not called for watches.
	if failed, _, err := s.reactToRequest(action); failed {
		return true, nil, err
	}
	node := selectedNode(action.(clienttesting.WatchAction).GetWatchRestrictions().Fields.String())
	all, err := s.Tracker().Watch(pods, "")
	if err != nil {
		return true, nil, err
	}
	list, err := s.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "")
	if err != nil {
		return true, nil, err
	}
	s.openWatches.Add(1)
	return true, filterByNode(all, node, list.(*corev1.PodList).Items, func() { s.openWatches.Add(-1) }), nil
}

// filterByNode returns a watch of the Pods of a Node. It starts with the present Pods,
// because the watch of a tracker omits what happened since the list. Unlike
// watch.Filter, it can be stopped during an event.
func filterByNode(all watch.Interface, node string, present []corev1.Pod, stopped func()) watch.Interface {
	events := make(chan watch.Event)
	proxy := watch.NewProxyWatcher(events)
	go func() {
		defer stopped()
		defer all.Stop()
		for i := range present {
			if !send(proxy, events, node, watch.Event{Type: watch.Modified, Object: &present[i]}) {
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

// unwatched is the annotation of a Pod that watches do not show.
const unwatched = "unwatched"

// send sends an event if it is about a Pod of the Node, and reports whether the watch
// continues.
func send(proxy *watch.ProxyWatcher, events chan<- watch.Event, node string, event watch.Event) bool {
	if pod, ok := event.Object.(*corev1.Pod); !ok || pod.Spec.NodeName != node || pod.Annotations[unwatched] != "" {
		return true
	}
	select {
	case events <- event:
		return true
	case <-proxy.StopChan():
		return false
	}
}

// reactToEviction evicts a Pod. The Pod is deleted when its grace period is over,
// unless its Node is unreachable.
func (s *apiServer) reactToEviction(action clienttesting.Action) (bool, runtime.Object, error) {
	eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
	s.mu.Lock()
	attempts := s.evictions[eviction.Name]
	now := time.Now()
	if len(attempts) > 0 && now.Sub(attempts[len(attempts)-1]) < time.Second {
		s.t.Errorf("Pod %s is attempted at %s and %s", eviction.Name, attempts[len(attempts)-1], now)
	}
	s.evictions[eviction.Name] = append(attempts, now)
	err := s.rejectEviction(eviction.Name)
	s.mu.Unlock()
	if err != nil {
		return true, nil, err
	}
	grace := ptr.Deref(eviction.DeleteOptions.GracePeriodSeconds, 0)
	if grace < 1 {
		s.t.Errorf("Pod %s is evicted with grace period %d", eviction.Name, grace)
	}
	object, err := s.Tracker().Get(pods, eviction.Namespace, eviction.Name)
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
	gracePeriod := time.Duration(grace) * time.Second
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(now.Add(gracePeriod))), &grace
	if err := s.Tracker().Update(pods, pod, pod.Namespace); err != nil {
		return true, nil, err
	}
	if node, err := s.Tracker().Get(nodes, "", pod.Spec.NodeName); err == nil && !unreachable(node.(*corev1.Node)) {
		time.AfterFunc(gracePeriod, func() { _ = s.Tracker().Delete(pods, pod.Namespace, pod.Name) })
	}
	return true, nil, nil
}

// reactToPatchNode rejects an apply that could create a Node, change a newer Node of
// its name, or overwrite a later version.
func (s *apiServer) reactToPatchNode(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchAction)
	if patch.GetPatchType() == types.JSONPatchType {
		return s.patchNode(action)
	}
	var applied metav1.PartialObjectMetadata
	if err := json.Unmarshal(patch.GetPatch(), &applied); err != nil {
		return true, nil, err
	}
	if patch.GetPatchType() != types.ApplyPatchType || applied.UID == "" {
		s.t.Errorf("Node %s is changed by %s", patch.GetName(), patch.GetPatch())
	}
	if s.beforePatch != nil {
		s.beforePatch()
		s.beforePatch = nil
	}
	if applied.ResourceVersion != "" && applied.ResourceVersion != s.node(patch.GetName()).ResourceVersion {
		return true, nil, apierrors.NewConflict(nodes.GroupResource(), patch.GetName(), errors.New("there is a later version"))
	}
	return s.patchNode(action)
}

// patchNode gives a patched Node a new resource version, which the tracker does not. It is higher
// than the versions of the tracker's lists.
func (s *apiServer) patchNode(action clienttesting.Action) (bool, runtime.Object, error) {
	handled, patched, err := clienttesting.ObjectReaction(s.Tracker())(action)
	if !handled || err != nil {
		return handled, patched, err
	}
	node := patched.(*corev1.Node).DeepCopy()
	node.ResourceVersion = strconv.FormatInt(1000+s.patches.Add(1), 10)
	return true, node, s.Tracker().Update(nodes, node.DeepCopy(), "", metav1.UpdateOptions{FieldManager: "apiserver"})
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name)},
		Spec:       corev1.NodeSpec{ProviderID: "kwok:///" + name},
	}
}

// newPod returns a Pod of a ReplicaSet, which has to leave the Node.
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

// newDaemonSetPod returns a Pod of the DaemonSet "agent".
func newDaemonSetPod(name, node string) *corev1.Pod {
	pod := newPod(name, node)
	pod.Labels = nil
	pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name = "DaemonSet", "agent"
	return pod
}

func newDaemonSet() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent"}}
}
