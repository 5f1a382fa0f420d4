// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// finished reports whether all containers of a Pod have terminated and will not be restarted.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// controlledByDaemonSet reports whether a DaemonSet controls a Pod.
func controlledByDaemonSet(pod *corev1.Pod) bool {
	controller := metav1.GetControllerOfNoCopy(pod)
	return controller != nil && controller.Kind == "DaemonSet"
}

// controlledByOtherDaemonSet reports whether the controller of a Pod is of a kind DaemonSet that
// is not Kubernetes' own, such as OpenKruise's (https://openkruise.io/docs/user-manuals/advanceddaemonset).
// kubectl takes its Pods for Pods of a deleted DaemonSet.
func controlledByOtherDaemonSet(pod *corev1.Pod) bool {
	if !controlledByDaemonSet(pod) {
		return false
	}
	version, err := schema.ParseGroupVersion(metav1.GetControllerOfNoCopy(pod).APIVersion)
	return err == nil && version.Group != appsv1.GroupName
}

// cordonTaint is the taint of a cordoned Node
// (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).
var cordonTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// toleratesCordon reports whether the scheduler may bind a Pod to a cordoned Node.
func toleratesCordon(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(toleration corev1.Toleration) bool {
		return toleration.ToleratesTaint(klog.Background(), &cordonTaint, false)
	})
}

// comesBack reports whether an evicted Pod would be replaced on the same Node. It is false until
// the Node was listed: a Node that registers again may have got Pods before its cordon.
func (s *state) comesBack(pod *corev1.Pod, node *corev1.Node) bool {
	if controlledByOtherDaemonSet(pod) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.presentOn == node.UID && !s.present.Has(pod.UID) && toleratesCordon(pod)
}

// setPresent stores the Pods of the first list of a Node, which may be evicted even if they
// tolerate the cordon.
func (s *state) setPresent(node *corev1.Node, pods sets.Set[types.UID]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.presentOn != node.UID {
		s.present, s.presentOn = pods, node.UID
	}
}

// blocksDrain reports whether a Pod that has to leave blocks the drain of its Node.
// A finished Pod does not, nor does a Pod whose grace period is over on a Node that
// cannot confirm its deletion.
func (s *state) blocksDrain(pod *corev1.Pod, node *corev1.Node, now time.Time) bool {
	if finished(pod) {
		return false
	}
	return !unreachable(node) || pod.DeletionTimestamp == nil || now.Before(s.gracePeriodEnd(pod, now))
}

// gracePeriodEnd returns when the grace period of a Pod that is being deleted is over at
// the latest. It is measured from the first observation of the deletion, because the
// deletion timestamp is by the clock of the API server.
func (s *state) gracePeriodEnd(pod *corev1.Pod, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, ok := s.deletions[pod.UID]
	if !ok {
		since = now
		s.deletions[pod.UID] = since
	}
	return since.Add(time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
}

// classifyPods finds out by a live list which Pods of a Node have to leave, and returns the number
// of Pods for which the drain waits. While DaemonSets cannot be read, the Pods of other
// controllers are evicted. Rules do not matter for the classification, because they may change.
func (c *Controller) classifyPods(ctx context.Context, s *state, node *corev1.Node, notice *shard.DeletionNotice) (int, error) {
	// A Pod that the watch shows before the list is in the list or was deleted.
	watched := s.startList(c.clock.Now())
	pods, unreadableErr, err := c.listEvictable(ctx, s, node)
	if err != nil {
		return 0, err
	}
	classified, leaving, unreadable := sets.New[types.UID](), sets.New[types.UID](), sets.New[types.UID]()
	awaited := 0
	ruleOf := c.rulesOf(ctx, notice)
	for i := range pods {
		classified.Insert(pods[i].UID)
		leaving.Insert(pods[i].UID)
		if rule, _ := ruleOf(&pods[i]); rule.Behavior != drainrule.Skip {
			awaited++
		}
	}
	for _, pod := range watched {
		classified.Insert(pod.UID)
		if unreadableErr != nil && controlledByDaemonSet(pod) && !leaving.Has(pod.UID) {
			unreadable.Insert(pod.UID)
		}
	}
	s.setPresent(node, leaving)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.classified, s.leaving = classified, leaving
	s.unreadable, s.unreadableErr = unreadable, unreadableErr
	return awaited, nil
}

// listEvictable lists the Pods that have to leave a Node before its machine is deleted, as the
// package comment describes. It bypasses the caches, because the acknowledgement depends on it.
// unreadable is the error of reading DaemonSets: their Pods are not listed.
func (c *Controller) listEvictable(ctx context.Context, s *state, node *corev1.Node) (pods []corev1.Pod, unreadable, err error) {
	list, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node.Name).String(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the Pods to evict from Node %s: %w", node.Name, err)
	}
	var errs []error
	for i := range list.Items {
		pod := &list.Items[i]
		if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror || !s.blocksDrain(pod, node, c.clock.Now()) || s.comesBack(pod, node) {
			continue
		}
		stays, err := c.staysWithDaemonSet(ctx, pod)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("read the DaemonSet of Pod %s/%s: %w", pod.Namespace, pod.Name, err))
		case !stays:
			pods = append(pods, *pod)
		}
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		unreadable = fmt.Errorf("list the Pods to evict from Node %s: %w", node.Name, utilerrors.NewAggregate(errs))
	}
	return pods, unreadable, nil
}

// staysWithDaemonSet reports whether a Pod stays on a Node that is drained, like with kubectl drain
// --ignore-daemonsets: a DaemonSet of Kubernetes that exists would create it again at once. A
// Pod whose DaemonSet was deleted leaves
// (https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/).
func (c *Controller) staysWithDaemonSet(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if !controlledByDaemonSet(pod) || controlledByOtherDaemonSet(pod) {
		return false, nil
	}
	_, err := c.client.AppsV1().DaemonSets(pod.Namespace).Get(ctx, metav1.GetControllerOfNoCopy(pod).Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// unknownRule is the rule of a Pod if its rules cannot be read: they may protect it, and they may
// not count once the time is short.
var unknownRule = drainrule.Rule{Behavior: drainrule.WaitCompleted, Source: "its rules are not known"}

// rulesOf returns a function that returns the rule of a Pod of an instance, and the error of
// reading its rules.
func (c *Controller) rulesOf(ctx context.Context, notice *shard.DeletionNotice) func(*corev1.Pod) (drainrule.Rule, error) {
	rules, err := c.rules.OfInstance(notice.Group, notice.ProviderID)
	return func(pod *corev1.Pod) (drainrule.Rule, error) {
		// The label of the Pod counts whether MachineDrainRules can be read or not.
		if rule := drainrule.Of(pod, nil, drainrule.Rules{}); rule.Source != "" {
			return rule, nil
		}
		if err != nil {
			return unknownRule, err
		}
		rule, err := c.rules.OfPod(ctx, rules, pod)
		if err != nil {
			return unknownRule, err
		}
		return rule, nil
	}
}

// observePods returns the state of the Pods of a Node from the watch, so that the
// many changes of Pods cost no requests.
func (c *Controller) observePods(ctx context.Context, s *state, node *corev1.Node, notice *shard.DeletionNotice, now time.Time) (podsObservation, error) {
	s.mu.Lock()
	watch, classified, leaving, listAfter := s.watch, s.classified, s.leaving, s.listAfter
	unreadable, unreadableErr := s.unreadable, s.unreadableErr
	s.mu.Unlock()
	if watch == nil || watch.node != node.Name {
		return podsObservation{}, nil
	}
	observed := podsObservation{watched: true, synced: watch.synced(), listAfter: listAfter}
	if !observed.synced {
		return observed, nil
	}
	ruleOf := c.rulesOf(ctx, notice)
	observed.classified, observed.rules = true, map[types.UID]drainrule.Rule{}
	if unreadableErr != nil {
		observed.readAgainAt = listAfter.Add(unreadablePeriod)
		observed.classified = now.Before(observed.readAgainAt)
	}
	var staying []*corev1.Pod
	for _, pod := range watch.pods() {
		switch {
		case unreadable.Has(pod.UID):
		case !classified.Has(pod.UID):
			observed.classified = false
		case !leaving.Has(pod.UID):
			staying = append(staying, pod)
		case s.blocksDrain(pod, node, now):
			rule, err := ruleOf(pod)
			if err != nil {
				observed.rulesErr = err
				observed.readAgainAt = earliest(observed.readAgainAt, now.Add(unreadablePeriod))
			}
			if rule.Behavior == drainrule.Skip {
				staying = append(staying, pod)
				continue
			}
			if rule != (drainrule.Rule{}) {
				observed.rules[pod.UID] = rule
			}
			observed.remaining = append(observed.remaining, pod)
			s.observeDeletion(&observed, pod, node, now)
		}
	}
	slices.SortFunc(observed.remaining, func(a, b *corev1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	observed.emptySince = s.setEmpty(observed.classified && len(observed.remaining) == 0 && unreadableErr == nil, now)
	if observed.emptySince.IsZero() {
		return observed, nil
	}
	var err error
	observed.attached, err = c.attachedVolumes(ctx, node.Name, staying)
	return observed, err
}

// observeDeletion adds a remaining Pod that is being deleted: whether it should have terminated,
// or when it should.
func (s *state) observeDeletion(observed *podsObservation, pod *corev1.Pod, node *corev1.Node, now time.Time) {
	if pod.DeletionTimestamp == nil {
		return
	}
	end := s.gracePeriodEnd(pod, now)
	stuckAt := end.Add(blockedAfter)
	switch {
	case unreachable(node):
		observed.gracePeriodEnd = earliest(observed.gracePeriodEnd, end)
	case now.Before(stuckAt):
		observed.stuckAt = earliest(observed.stuckAt, stuckAt)
	default:
		observed.stuck = append(observed.stuck, stuckPod{pod, end})
	}
}

// notDeleted returns the Pods without a deletion timestamp.
func notDeleted(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// podWatch watches the Pods of a Node while it is drained. The operator never
// watches the Pods of all Nodes.
type podWatch struct {
	node     string
	informer cache.SharedIndexInformer
	synced   func() bool
	stop     context.CancelFunc

	mu sync.Mutex
	// err is the last error of the watch, nil before the first error.
	err error
}

// failed returns the last error of the watch, nil before the first error. Each watch ends with
// an error at some time, so the error has a meaning only until the watch is complete.
func (w *podWatch) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *podWatch) setFailed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// startPodWatch watches the Pods of a Node for a drain, which is enqueued on each
// change and when the watch is complete.
func (c *Controller) startPodWatch(ctx context.Context, key Key, s *state, node string) {
	s.stopPodWatch()

	informer := coreinformers.NewFilteredPodInformer(c.client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		})
	// Neither of these fails before an informer is started.
	if err := informer.SetTransform(trimPod); err != nil {
		panic(err)
	}
	watch := &podWatch{node: node, informer: informer}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		watch.setFailed(fmt.Errorf("watch the Pods of Node %s: %w", node, err))
		c.queue.Add(key)
	})
	if err != nil {
		panic(err)
	}
	registration, err := informer.AddEventHandler(controller.OnChange(func(_, _ *corev1.Pod) { c.queue.Add(key) }))
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "node", node)))
	c.podWatches.Go(func() { informer.RunWithContext(ctx) })
	c.podWatches.Go(func() {
		select {
		case <-registration.HasSyncedChecker().Done():
			c.queue.Add(key)
		case <-ctx.Done():
		}
	})

	s.mu.Lock()
	defer s.mu.Unlock()
	watch.synced, watch.stop = registration.HasSynced, stop
	s.watch = watch
}

func (w *podWatch) pods() []*corev1.Pod {
	objects := w.informer.GetStore().List()
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// trimPod is the transform of a watch: it keeps the fields that drains read, because
// many Nodes may be drained at the same time.
func trimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, DeletionTimestamp: pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds, OwnerReferences: pod.OwnerReferences,
		},
		Spec:   corev1.PodSpec{TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	if value, ok := pod.Annotations[drainrule.DoNotDisrupt]; ok {
		trimmed.Annotations = map[string]string{drainrule.DoNotDisrupt: value}
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
			trimmed.Spec.Volumes = append(trimmed.Spec.Volumes, volume)
		}
	}
	return trimmed, nil
}
