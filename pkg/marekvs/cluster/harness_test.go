// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller/apitest"
	"nstance.dev/operator/pkg/generated/clientset/versioned/fake"
	ourscheme "nstance.dev/operator/pkg/generated/clientset/versioned/scheme"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
)

const (
	period     = 10 * time.Second
	settle     = 30 * time.Second
	rateWindow = 10 * time.Second
)

var (
	clusterResource = v1alpha1.SchemeGroupVersion.WithResource("marekvsclusters")
	setResource     = appsv1.SchemeGroupVersion.WithResource("statefulsets")
	serviceResource = corev1.SchemeGroupVersion.WithResource("services")
	budgetResource  = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
	podResource     = corev1.SchemeGroupVersion.WithResource("pods")
	claimResource   = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
)

// api is an API server in memory, with its clients.
type api struct {
	t       testing.TB
	clock   *clocktesting.FakePassiveClock
	kube    *kubefake.Clientset
	marekvs *fake.Clientset
	// builtIn serves built-in kinds, kinds serves MarekvsClusters.
	builtIn, kinds *apitest.Server
}

func newAPI(t testing.TB) *api {
	t.Helper()
	return serve(t, kubefake.NewClientset(), fake.NewClientset())
}

// newSoleAPI returns an API server whose operators alone write the fields that they apply: a walk writes some hundred times,
// and each write would compute managed fields twice.
func newSoleAPI(t testing.TB) *api {
	t.Helper()
	a := serve(t, kubefake.NewSimpleClientset(), fake.NewSimpleClientset())
	a.builtIn.Sole, a.kinds.Sole = kubescheme.Scheme, ourscheme.Scheme
	return a
}

func serve(t testing.TB, kube *kubefake.Clientset, marekvs *fake.Clientset) *api {
	t.Helper()
	return &api{
		t: t, clock: clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)),
		kube: kube, marekvs: marekvs, builtIn: apitest.NewServer(t, kube), kinds: apitest.NewServer(t, marekvs),
	}
}

// writes returns the writes since the last call: of built-in kinds, then of clusters.
func (a *api) writes() []string { return slices.Concat(a.builtIn.Writes(), a.kinds.Writes()) }

func (a *api) cluster() *v1alpha1.MarekvsCluster {
	a.t.Helper()
	object, err := a.marekvs.Tracker().Get(clusterResource, "ns", "demo")
	require.NoError(a.t, err)
	return object.(*v1alpha1.MarekvsCluster).DeepCopy()
}

// change changes the spec of the cluster, as a user does.
func (a *api) change(change func(*v1alpha1.MarekvsCluster)) {
	a.t.Helper()
	cluster := a.cluster()
	change(cluster)
	a.kinds.Update(clusterResource, cluster)
}

// set returns the StatefulSet, nil if it does not exist.
func (a *api) set() *appsv1.StatefulSet {
	object, err := a.kube.Tracker().Get(setResource, "ns", "demo")
	if err != nil {
		return nil
	}
	return object.(*appsv1.StatefulSet).DeepCopy()
}

func (a *api) pods() []corev1.Pod {
	a.t.Helper()
	list, err := a.kube.Tracker().List(podResource, kinds[podResource], "ns")
	require.NoError(a.t, err)
	return list.(*corev1.PodList).Items
}

func (a *api) claims() []corev1.PersistentVolumeClaim {
	a.t.Helper()
	list, err := a.kube.Tracker().List(claimResource, kinds[claimResource], "ns")
	require.NoError(a.t, err)
	return list.(*corev1.PersistentVolumeClaimList).Items
}

// claimNames returns the names of the volume claims.
func (a *api) claimNames() []string {
	var names []string
	for _, claim := range a.claims() {
		names = append(names, claim.Name)
	}
	return names
}

// newPod returns a Pod of a StatefulSet that is ready.
func newPod(set *appsv1.StatefulSet, ordinal int32, uid, address string) *corev1.Pod {
	labels := children.Labels(set.Name)
	labels[appsv1.StatefulSetRevisionLabel] = set.Status.UpdateRevision
	labels[appsv1.StatefulSetPodNameLabel] = podName(ordinal)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: podName(ordinal), UID: types.UID(uid), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))},
		},
		Status: corev1.PodStatus{PodIP: address, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// newClaim returns the volume claim of a node, with a volume of 10Gi.
func newClaim(ordinal int32) *corev1.PersistentVolumeClaim {
	size := corev1.ResourceList{corev1.ResourceStorage: quantity("10Gi")}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data-" + podName(ordinal), Labels: children.Labels("demo")},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("standard"), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size},
	}
}

func podName(ordinal int32) string { return "demo-" + strconv.Itoa(int(ordinal)) }

// instance is an operator with its own caches.
type instance struct {
	*Controller

	api      *api
	recorder *events.FakeRecorder
	// filled has the version of the API server that each cache has; nil if every cache is always filled again.
	filled map[schema.GroupVersionResource]string
	// watch fills the caches, and returns when they are complete.
	watch func(ctx context.Context)
}

// newInstance starts an operator, whose caches are empty.
func (a *api) newInstance(kube kubernetes.Interface, scraper Scraper) *instance {
	a.t.Helper()
	ours := externalversions.NewSharedInformerFactory(a.marekvs, 0)
	builtIn := kubeinformers.NewSharedInformerFactory(a.kube, 0)
	recorder := events.NewFakeRecorder(1000)
	c, err := New(Config{
		Kube: kube, Marekvs: a.marekvs.MarekvsV1alpha1(), Scraper: scraper, Recorder: recorder, Clock: a.clock,
		Informers: Informers{
			Clusters:     ours.Marekvs().V1alpha1().MarekvsClusters().Informer(),
			StatefulSets: builtIn.Apps().V1().StatefulSets().Informer(),
			Services:     builtIn.Core().V1().Services().Informer(),
			Budgets:      builtIn.Policy().V1().PodDisruptionBudgets().Informer(),
			Pods:         builtIn.Core().V1().Pods().Informer(),
			Claims:       builtIn.Core().V1().PersistentVolumeClaims().Informer(),
		},
		Children: children.Options{ClusterDomain: "cluster.local", MetricsPort: 9121},
		Period:   period, Settle: settle, RateWindow: rateWindow,
	})
	require.NoError(a.t, err)
	return &instance{Controller: c, api: a, recorder: recorder, watch: func(ctx context.Context) {
		ours.StartWithContext(ctx)
		builtIn.StartWithContext(ctx)
		require.True(a.t, cache.WaitFor(ctx, "caches", c.HasSynced()...))
	}}
}

// show makes the caches equal to the API server.
func (i *instance) show() { i.showSome(func() bool { return true }) }

// showSome makes each cache equal to the API server if refresh returns true.
func (i *instance) showSome(refresh func() bool) {
	i.api.t.Helper()
	kube := i.api.kube.Tracker()
	fill(i, refresh, i.api.marekvs.Tracker(), i.Informers.Clusters, clusterResource,
		func(l *v1alpha1.MarekvsClusterList) []v1alpha1.MarekvsCluster { return l.Items })
	fill(i, refresh, kube, i.Informers.StatefulSets, setResource, func(l *appsv1.StatefulSetList) []appsv1.StatefulSet { return l.Items })
	fill(i, refresh, kube, i.Informers.Services, serviceResource, func(l *corev1.ServiceList) []corev1.Service { return l.Items })
	fill(i, refresh, kube, i.Informers.Budgets, budgetResource, func(l *policyv1.PodDisruptionBudgetList) []policyv1.PodDisruptionBudget { return l.Items })
	fill(i, refresh, kube, i.Informers.Pods, podResource, func(l *corev1.PodList) []corev1.Pod { return l.Items })
	fill(i, refresh, kube, i.Informers.Claims, claimResource, func(l *corev1.PersistentVolumeClaimList) []corev1.PersistentVolumeClaim { return l.Items })
}

// kinds has the kinds of the resources.
var kinds = map[schema.GroupVersionResource]schema.GroupVersionKind{
	clusterResource: v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.ClusterKind),
	setResource:     appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	serviceResource: corev1.SchemeGroupVersion.WithKind("Service"),
	budgetResource:  policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
	podResource:     corev1.SchemeGroupVersion.WithKind("Pod"),
	claimResource:   corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
}

// fill makes a cache equal to the API server, if refresh returns true.
func fill[List runtime.Object, T any](
	i *instance, refresh func() bool, from clienttesting.ObjectTracker, informer cache.SharedIndexInformer,
	resource schema.GroupVersionResource, items func(List) []T,
) {
	i.api.t.Helper()
	version := i.api.builtIn.Version()
	if resource == clusterResource {
		version = i.api.kinds.Version()
	}
	if !refresh() || i.filled != nil && i.filled[resource] == version {
		return
	}
	if i.filled != nil {
		i.filled[resource] = version
	}
	list, err := from.List(resource, kinds[resource], "ns")
	require.NoError(i.api.t, err)
	var objects []any
	all := items(list.(List))
	for n := range all {
		object := any(&all[n])
		if object.(metav1.Object).GetLabels()[v1alpha1.LabelManagedBy] == v1alpha1.ManagerName || resource == clusterResource {
			objects = append(objects, object)
		}
	}
	require.NoError(i.api.t, informer.GetIndexer().Replace(objects, version))
}

// syncStale syncs the cluster with the caches as they are.
func (i *instance) syncStale(ctx context.Context) (time.Duration, error) {
	return i.sync(ctx, cache.NewObjectName("ns", "demo"))
}

// syncFresh syncs the cluster with present caches.
func (i *instance) syncFresh() (time.Duration, error) {
	i.show()
	return i.syncStale(i.api.t.Context())
}

// harness is an operator with one cluster, whose nodes start and end at once.
type harness struct {
	*api
	*instance
	*nodes
}

// newHarness returns a harness with a cluster of 3 nodes that was synced until it is healthy.
func newHarness(t *testing.T, change func(*v1alpha1.MarekvsCluster)) *harness {
	t.Helper()
	h := newEmpty(t, change)
	h.settle()
	require.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%+v", h.cluster().Status)
	h.writes()
	h.events()
	return h
}

// newEmpty returns a harness with a cluster that was never synced.
func newEmpty(t *testing.T, change func(*v1alpha1.MarekvsCluster)) *harness {
	t.Helper()
	a := newAPI(t)
	h := &harness{api: a, nodes: &nodes{api: a, silent: map[string]bool{}, started: map[string]*node{}, broken: map[string]bool{}, lost: map[types.UID]bool{}}}
	h.instance = a.newInstance(a.kube, h.nodes)
	cluster := demo()
	cluster.UID = ""
	cluster.Spec.Storage.Size = ptr.To(quantity("10Gi"))
	if change != nil {
		change(cluster)
	}
	a.kinds.Add(cluster)
	a.builtIn.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "standard"}, AllowVolumeExpansion: ptr.To(true)})
	return h
}

// step syncs with present caches, and lets the StatefulSet controller and the nodes work.
func (h *harness) step() {
	h.t.Helper()
	h.show()
	_, err := h.syncStale(h.t.Context())
	require.NoError(h.t, err)
	h.runStatefulSet()
}

// pass is a step, and advances the clock by a period.
func (h *harness) pass() {
	h.t.Helper()
	h.step()
	h.advance(period)
}

// settle passes until no step waits for the last change.
func (h *harness) settle() {
	h.t.Helper()
	for range 10 {
		h.pass()
	}
}

// expect syncs once and compares the writes.
func (h *harness) expect(want ...string) {
	h.t.Helper()
	h.show()
	_, err := h.syncStale(h.t.Context())
	require.NoError(h.t, err)
	assert.Equal(h.t, want, h.writes(), "wrote")
}

// events returns the events since the last call.
func (h *harness) events() []string {
	var recorded []string
	for len(h.recorder.Events) > 0 {
		recorded = append(recorded, <-h.recorder.Events)
	}
	return recorded
}

// node is the process of a Pod.
type node struct {
	commands float64
	rounds   float64
}

// nodes acts as the StatefulSet controller, and as nodes that start and end at once.
type nodes struct {
	api *api

	// rate is the rate of the whole cluster.
	rate float64
	// under is the number of partitions with too few owners.
	under int64
	// moved is how much each node has moved.
	moved int64
	// disk is the used share of each volume, nil if nodes do not report it. stopped is more than 0 if nodes
	// have stopped to write.
	disk    *float64
	stopped int64
	// silent has the addresses of nodes that do not report metrics.
	silent map[string]bool
	// draining keeps Pods that are being deleted from ending.
	draining bool
	// broken has the images that cannot be pulled, full is the number of Pods that Nodes accept, 0
	// for any number and less for none.
	broken map[string]bool
	full   int

	// waits is true if the StatefulSet controller updates no Pod while one is not ready, as that of
	// Kubernetes 1.35.0 does with a Pod that fails.
	waits bool
	// lost has the claims whose volumes are lost: no Node accepts their Pods.
	lost map[types.UID]bool

	created int
	// adopts is true if Pods without a controller are adopted.
	adopts bool
	// started has the running nodes, by address.
	started map[string]*node
	// scraped has the addresses of the last scrape.
	scraped []string
}

// roundTime is how long a node takes to compare its copies.
const roundTime = 5 * time.Second

// advance lets time pass.
func (n *nodes) advance(d time.Duration) {
	n.api.clock.SetTime(n.api.clock.Now().Add(d))
	for _, started := range n.started {
		started.commands += n.rate / float64(len(n.started)) * d.Seconds()
		started.rounds += float64(d) / float64(roundTime)
	}
}

// Scrape implements Scraper.
func (n *nodes) Scrape(_ context.Context, addresses []string) []observe.Scrape {
	n.scraped = addresses
	results := make([]observe.Scrape, len(addresses))
	for i, address := range addresses {
		started := n.started[address]
		if started == nil || n.silent[address] {
			results[i].Err = errors.New("silent")
			continue
		}
		results[i] = observe.Scrape{At: n.api.clock.Now(), Metrics: &observe.Metrics{
			Sample: scale.Sample{
				Underreplicated: ptr.To(n.under), Members: ptr.To(int64(len(n.started))), EffectiveReplicas: ptr.To[int64](2),
			},
			Commands: ptr.To(float64(int64(started.commands))), Rounds: ptr.To(int64(started.rounds)), Moved: ptr.To(n.moved),
		}}
		if sample := &results[i].Metrics.Sample; n.disk != nil {
			sample.DiskTotal, sample.DiskAvailable, sample.WriteStopped = ptr.To(100.0), ptr.To(100*(1-*n.disk)), &n.stopped
		}
	}
	return results
}

// runStatefulSet brings the Pods to the spec of the StatefulSet.
func (n *nodes) runStatefulSet() {
	set := n.api.set()
	switch {
	case set == nil:
		return
	case set.DeletionTimestamp != nil:
		n.orphan(set)
		return
	case n.adopts:
		n.adopt(set)
	}
	revision := set.Spec.Template.Spec.Containers[0].Image
	if set.Status.CurrentRevision == "" {
		set.Status.CurrentRevision = revision
	}
	set.Status.UpdateRevision = revision
	n.stopDeleted()
	n.endClaims()
	present, updated := map[int32]bool{}, int32(0)
	onDelete := set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType
	for _, pod := range n.api.pods() {
		ordinal, ok := podOrdinal("demo", pod.Name)
		if !ok || len(pod.OwnerReferences) == 0 {
			continue
		}
		current := pod.Labels["controller-revision-hash"] == revision
		stuck := n.waits && !describe(&pod, ordinal).Ready
		if ordinal >= *set.Spec.Replicas || !onDelete && !current && !stuck && ordinal >= *set.Spec.UpdateStrategy.RollingUpdate.Partition {
			n.end(&pod)
			present[ordinal] = n.draining
			continue
		}
		present[ordinal] = true
		if pod.Status.Phase == corev1.PodPending {
			n.ensureClaim(set, ordinal)
		}
		if current && describe(&pod, ordinal).Ready {
			updated++
		}
	}
	for ordinal := range *set.Spec.Replicas {
		if !present[ordinal] && n.start(ordinal) {
			updated++
		}
	}
	if updated == *set.Spec.Replicas && !onDelete {
		set.Status.CurrentRevision = revision
	}
	set.Status.ObservedGeneration = set.Generation
	set.Status.Replicas = n.podsOf()
	n.api.builtIn.Update(setResource, set)
}

// orphan deletes the StatefulSet and leaves its Pods, as the garbage collector does.
func (n *nodes) orphan(set *appsv1.StatefulSet) {
	n.adopts = true
	for _, pod := range n.api.pods() {
		if metav1.IsControlledBy(&pod, set) {
			pod.OwnerReferences = nil
			n.api.builtIn.Update(podResource, &pod)
		}
	}
	n.api.builtIn.Remove(setResource, set.Namespace, set.Name)
}

func (n *nodes) adopt(set *appsv1.StatefulSet) {
	for _, pod := range n.api.pods() {
		if len(pod.OwnerReferences) == 0 {
			pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
			n.api.builtIn.Update(podResource, &pod)
		}
	}
}

// podsOf returns the number of Pods of the StatefulSet.
func (n *nodes) podsOf() int32 {
	count := int32(0)
	for _, pod := range n.api.pods() {
		if len(pod.OwnerReferences) > 0 {
			count++
		}
	}
	return count
}

// protection is the finalizer of claims that Pods use.
const protection = "kubernetes.io/pvc-protection"

// endClaims deletes the claims that are being deleted and whose Pods have ended.
func (n *nodes) endClaims() {
	uses := map[string]bool{}
	for _, pod := range n.api.pods() {
		uses["data-"+pod.Name] = true
	}
	for _, claim := range n.api.claims() {
		if claim.DeletionTimestamp != nil && slices.Contains(claim.Finalizers, protection) && !uses[claim.Name] {
			n.api.builtIn.Remove(claimResource, claim.Namespace, claim.Name)
		}
	}
}

// stopDeleted ends the nodes whose Pods do not exist.
func (n *nodes) stopDeleted() {
	exists := map[string]bool{}
	for _, pod := range n.api.pods() {
		exists[pod.Status.PodIP] = true
	}
	maps.DeleteFunc(n.started, func(address string, _ *node) bool { return !exists[address] })
}

// ensureClaim returns the claim of a node, and creates it if it does not exist, with a volume.
func (n *nodes) ensureClaim(set *appsv1.StatefulSet, ordinal int32) *corev1.PersistentVolumeClaim {
	claim := newClaim(ordinal)
	if present, err := n.api.kube.Tracker().Get(claimResource, "ns", claim.Name); err == nil {
		return present.(*corev1.PersistentVolumeClaim)
	}
	claim.CreationTimestamp.Time = n.api.clock.Now()
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *children.StorageOf(set)}
	claim.Status.Capacity = claim.Spec.Resources.Requests
	n.api.builtIn.Add(claim)
	return claim
}

// start creates a Pod, and reports whether its container starts.
func (n *nodes) start(ordinal int32) bool {
	set := n.api.set()
	set.Status.UpdateRevision = set.Spec.Template.Spec.Containers[0].Image
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling != nil && ordinal < *rolling.Partition {
		set.Status.UpdateRevision = cmp.Or(set.Status.CurrentRevision, set.Status.UpdateRevision)
	}
	claim := n.ensureClaim(set, ordinal)
	n.created++
	address := fmt.Sprintf("10.0.0.%d", n.created)
	pod := newPod(set, ordinal, fmt.Sprintf("pod-%d", n.created), address)
	pod.CreationTimestamp.Time = n.api.clock.Now()
	pod.Spec.Containers = []corev1.Container{{Name: children.ContainerName, Env: []corev1.EnvVar{
		{Name: "MAREKVS_CLUSTER", Value: children.GossipClusterOf(&set.Spec.Template.Spec)},
	}}}
	switch {
	case n.full < 0, n.full > 0 && int(n.podsOf()) >= n.full, n.lost[claim.UID]:
		setPending(pod, "")
	case n.broken[set.Status.UpdateRevision]:
		setPending(pod, "ImagePullBackOff")
	default:
		n.started[address] = &node{}
	}
	n.api.builtIn.Add(pod)
	return describe(pod, ordinal).Ready
}

// setPending makes the container of a Pod wait, as if it had never run. Without a reason no Node accepts
// the Pod.
func setPending(pod *corev1.Pod, reason string) {
	pod.Status.Phase, pod.Status.PodIP = corev1.PodPending, ""
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	if reason != "" {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
}

func (n *nodes) end(pod *corev1.Pod) {
	if n.draining {
		if pod.DeletionTimestamp == nil {
			pod.DeletionTimestamp = ptr.To(metav1.NewTime(n.api.clock.Now()))
			pod.Finalizers = []string{"test/draining"}
			n.api.builtIn.Update(podResource, pod)
		}
		return
	}
	delete(n.started, pod.Status.PodIP)
	n.api.builtIn.Remove(podResource, pod.Namespace, pod.Name)
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
