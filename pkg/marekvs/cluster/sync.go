// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// syncResult records what a sync observed, decided and wrote, for the status and events.
type syncResult struct {
	// observed is nil while there is no StatefulSet.
	observed *scale.Observation
	load     *scale.Load
	decision scale.Decision
	// created is true when the StatefulSet was created, with replicas nodes.
	created  bool
	replicas int32
	// adopting is true while there is no StatefulSet for Pods that run on: it was deleted without
	// them.
	adopting bool
	// expansion is how far the volumes have their size.
	expansion expansion
	// resized has the claims whose size was changed. deletedForClaims is true when the
	// StatefulSet was deleted without its Pods, to create it with larger claims.
	resized          []claimResize
	deletedForClaims bool
	// claims has the volume claims by ordinal, as the decision about lost volumes saw them. replacedClaim
	// is the name of the claim that was deleted to replace it, replacedPod the name of the Pod that was deleted because
	// its claim was being deleted before.
	claims                     map[int32]*corev1.PersistentVolumeClaim
	replacedClaim, replacedPod string
	// zones has the number of nodes in each zone, nil if that is not known.
	zones map[string]int32
	// reclaimed has the names of the deleted claims, replaced the names of the deleted Pods.
	reclaimed, replaced []string
	// stalled is true if the update or the change of the size has made no step for
	// progressDeadlineSeconds.
	stalled bool
	// scaledUp and scaledDown are the times of the last changes of the size.
	scaledUp, scaledDown *metav1.Time
}

// keep records that the size is not changed.
func (r *syncResult) keep(set *appsv1.StatefulSet) {
	r.replicas = r.observed.Replicas
	r.scaledUp, r.scaledDown = stamp(set.Annotations, v1alpha1.AnnotationLastScaleUp), stamp(set.Annotations, v1alpha1.AnnotationLastScaleDown)
}

// errStale is returned if the cache is older than the API server. The sync is retried.
var errStale = errors.New("the cache is older than the API server")

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if !c.clusterWrites.CaughtUp(key) || !c.setWrites.CaughtUp(key) {
		return max(c.clusterWrites.Delay(key), c.setWrites.Delay(key)), nil
	}
	obj, exists, err := c.Informers.Clusters.GetStore().GetByKey(key.String())
	if err != nil {
		return 0, fmt.Errorf("read MarekvsCluster %s from the cache: %w", key, err)
	}
	if !exists {
		c.forget()
		c.staleReads.Reset(key)
		return 0, nil
	}
	cluster := obj.(*v1alpha1.MarekvsCluster).WithDefaults()
	if cluster.DeletionTimestamp != nil {
		return 0, nil
	}
	limited, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	result, err := c.reconcile(limited, c.memoryOf(cluster.UID), cluster)
	if errors.Is(err, errStale) || apierrors.IsConflict(err) {
		// The next sync does not repeat what this sync has written before the conflict.
		c.recordWrites(cluster, result)
		return c.staleReads.Delay(key), nil
	}
	c.staleReads.Reset(key)
	ctx, cancel = context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if published := c.publish(ctx, cluster, result, err); published != nil {
		return 0, errors.Join(err, published)
	}
	if owned := (&notOwnedError{}); errors.As(err, &owned) {
		return c.Period, nil
	}
	return c.Period, err
}

// reconcile brings a cluster one step towards its spec.
func (c *Controller) reconcile(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster) (*syncResult, error) {
	result := &syncResult{}
	obj, _, err := c.Informers.StatefulSets.GetStore().GetByKey(cluster.Namespace + "/" + cluster.Name)
	if err != nil {
		return result, fmt.Errorf("read StatefulSet %s from the cache: %w", cluster.Name, err)
	}
	set, _ := obj.(*appsv1.StatefulSet)
	// The nodes of a cluster that exists are managed although a Service cannot be written.
	var services error
	if !cluster.Spec.Paused {
		services = c.ensureServices(ctx, m, cluster, set)
	}
	if set == nil {
		if cluster.Spec.Paused {
			return result, nil
		}
		return result, c.create(ctx, m, cluster, result, services)
	}
	if !children.IsOwned(set, cluster) {
		return result, &notOwnedError{"StatefulSet", set.Name}
	}
	if set.DeletionTimestamp != nil {
		result.adopting = slices.Contains(set.Finalizers, metav1.FinalizerOrphanDependents)
		return result, services
	}
	result.observed, result.load = c.observe(ctx, m, cluster, set)
	result.zones = c.nodesByZone(ctx, set)
	m.see(result.observed, c.Clock.Now())
	wanted := wantedOf(cluster)
	if seconds, err := strconv.ParseInt(set.Annotations[v1alpha1.AnnotationStabilization], 10, 64); err == nil {
		wanted.Stabilization = time.Duration(seconds) * time.Second
	}
	var lost error
	result.observed.Lost, result.claims, lost = c.findLost(ctx, m, cluster, set)
	result.decision = scale.Decide(wanted, result.observed, result.load, c.readVolumes(cluster))
	volumes := errors.Join(lost, c.planExpansion(ctx, cluster, set, result))
	if cluster.Spec.Paused {
		m.progress.stalledFor("", c.Clock.Now())
		result.keep(set)
		return result, volumes
	}
	stalledFor := m.progress.stalledFor(stepOf(result.observed, &result.decision), c.Clock.Now())
	result.stalled = stalledFor > progressDeadline(cluster)
	// A full volume grows whatever else fails.
	errs := []error{services, volumes, c.resizeClaims(ctx, result)}
	for _, act := range []func() error{
		func() error { return c.resize(ctx, m, cluster, set, result) },
		func() error { return c.replace(ctx, set, result) },
		func() error { return c.reclaim(ctx, cluster, set, result) },
		func() error { return c.replaceVolume(ctx, set, result) },
		func() error { return c.deleteForClaims(ctx, set, result) },
		func() error { return c.recreateClaims(ctx, result) },
	} {
		if err := act(); err != nil {
			return result, errors.Join(append(errs, err)...)
		}
	}
	return result, errors.Join(errs...)
}

// resize writes the decided size and partition.
func (c *Controller) resize(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet, result *syncResult) error {
	now, version := c.Clock.Now(), set.ResourceVersion
	if result.decision.Rollout.OnDelete && !result.observed.OnDelete {
		result.keep(set)
		return c.setOnDelete(ctx, set)
	}
	size := children.Size{
		Replicas:    result.decision.Step.Replicas,
		Partition:   result.decision.Rollout.Partition,
		OnDelete:    result.decision.Rollout.OnDelete,
		Annotations: stabilizationAnnotation(cluster),
		Storage:     children.StorageOf(set),
	}
	if share := result.decision.Disk.AtGrowth; share != nil {
		size.Annotations[v1alpha1.AnnotationDiskAtGrowth] = strconv.FormatFloat(*share, 'f', 1, 64)
	}
	beginning := false
	if node := result.decision.Replacement.Node; node != nil {
		size.Annotations[v1alpha1.AnnotationReplacing] = string(result.claims[node.Ordinal].UID)
		beginning = !node.Begun
	}
	keep := []string{v1alpha1.AnnotationLastScaleUp, v1alpha1.AnnotationLastScaleDown}
	if cluster.Spec.Autoscale == nil && result.decision.Target < result.observed.Replicas {
		keep = append(keep, v1alpha1.AnnotationStabilization)
	}
	for _, name := range keep {
		if value, ok := set.Annotations[name]; ok {
			size.Annotations[name] = value
		}
	}
	switch before := result.observed.Replicas; {
	case size.Replicas > before:
		size.Annotations[v1alpha1.AnnotationLastScaleUp] = now.UTC().Format(time.RFC3339)
	case size.Replicas < before:
		size.Annotations[v1alpha1.AnnotationLastScaleDown] = now.UTC().Format(time.RFC3339)
	}
	// A removal lowers the partition with the size, and updates no Pod.
	rollout := &result.decision.Rollout
	lowered := !size.OnDelete && !rollout.Done && size.Partition < min(result.observed.UpdatesFrom(), size.Replicas)
	if beginning || lowered || size.Replicas < result.observed.Replicas {
		var err error
		if version, err = c.confirm(ctx, set); err != nil {
			return err
		}
	}
	// While the next Pod waits, only Pods that are updated already are above the partition.
	if lowered && rollout.Waiting == nil {
		deleting, err := c.deletingClaim(ctx, result.claims[size.Partition])
		if err != nil {
			return err
		}
		if deleting {
			return errStale
		}
	}
	if err := c.ensureStatefulSet(ctx, m, cluster, gossipClusterOf(set), size, version); err != nil {
		return err
	}
	result.replicas = size.Replicas
	result.scaledUp, result.scaledDown = stamp(size.Annotations, keep[0]), stamp(size.Annotations, keep[1])
	return nil
}

func stamp(annotations map[string]string, name string) *metav1.Time {
	at, err := time.Parse(time.RFC3339, annotations[name])
	if err != nil {
		return nil
	}
	return &metav1.Time{Time: at}
}

// stabilizationAnnotation stores the stabilization, which still applies after autoscaling
// was disabled.
func stabilizationAnnotation(cluster *v1alpha1.MarekvsCluster) map[string]string {
	annotations := map[string]string{}
	if cluster.Spec.Autoscale != nil {
		annotations[v1alpha1.AnnotationStabilization] = strconv.FormatInt(int64(stabilization(cluster).Seconds()), 10)
	}
	return annotations
}

// stabilization returns the stabilization of the autoscaler. A cluster without one has the
// default, so that its load is already known when autoscaling is enabled.
func stabilization(cluster *v1alpha1.MarekvsCluster) time.Duration {
	seconds := v1alpha1.DefaultScaleDownStabilizationSeconds
	if cluster.Spec.Autoscale != nil {
		seconds = *cluster.Spec.Autoscale.ScaleDownStabilizationSeconds
	}
	return time.Duration(seconds) * time.Second
}

func wantedOf(cluster *v1alpha1.MarekvsCluster) *scale.Wanted {
	spec := &cluster.Spec
	wanted := &scale.Wanted{Nodes: spec.Nodes, ReplicationFactor: spec.ReplicationFactor, Reclaim: spec.ReclaimPvcs,
		ReclaimAfter: time.Duration(spec.ReclaimAfterSeconds) * time.Second,
		ReplaceAfter: time.Duration(spec.Storage.ReplaceLostAfterSeconds) * time.Second}
	if a := spec.Autoscale; a != nil {
		wanted.Autoscaler = &scale.Autoscaler{
			MinNodes: a.MinNodes, MaxNodes: a.MaxNodes, ReplicationFactor: spec.ReplicationFactor,
			OpsPerNode:        a.TargetOpsPerNode,
			UpCooldown:        time.Duration(*a.ScaleUpCooldownSeconds) * time.Second,
			DownStabilization: stabilization(cluster),
			DiskPercent:       a.TargetDiskPercent,
		}
	}
	return wanted
}

// state has the fields of a Pod that a removal depends on.
type state struct{ ready, terminating, neverRan bool }

// confirm compares the StatefulSet and its Pods at the API server with the cache. It
// returns the current resource version, or errStale if they differ.
func (c *Controller) confirm(ctx context.Context, set *appsv1.StatefulSet) (version string, err error) {
	live, err := c.Kube.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", errStale
	}
	if err != nil {
		return "", fmt.Errorf("read StatefulSet %s: %w", set.Name, err)
	}
	if live.UID != set.UID || live.Generation != set.Generation || live.Status.ObservedGeneration != live.Generation ||
		live.Status.Replicas != set.Status.Replicas || live.Status.UpdateRevision != set.Status.UpdateRevision {
		return "", errStale
	}
	pods, err := c.Kube.CoreV1().Pods(set.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(children.Selector(set.Name)).String(),
	})
	if err != nil {
		return "", fmt.Errorf("list the Pods of %s: %w", set.Name, err)
	}
	cached := map[types.UID]state{}
	for _, pod := range c.readPods(set) {
		cached[pod.UID] = stateOfPod(pod)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !belongsTo(pod, set) {
			continue
		}
		if known, ok := cached[pod.UID]; !ok || known != stateOfPod(pod) {
			return "", errStale
		}
		delete(cached, pod.UID)
	}
	if len(cached) > 0 {
		return "", errStale
	}
	return live.ResourceVersion, nil
}

func stateOfPod(pod *corev1.Pod) state {
	described := describe(pod, 0)
	return state{ready: described.Ready, terminating: described.Terminating, neverRan: described.NeverRan}
}

// reclaim deletes the claims that the decision names, after confirm. A claim that changed
// since it was read is not deleted.
func (c *Controller) reclaim(ctx context.Context, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet, result *syncResult) error {
	if len(result.decision.Reclaim) == 0 {
		return nil
	}
	if _, err := c.confirm(ctx, set); err != nil {
		return err
	}
	var errs []error
	for _, volume := range result.decision.Reclaim {
		deleted, err := c.deleteClaim(ctx, cluster, volume)
		if err != nil {
			errs = append(errs, &reclaimError{volume.Name, err})
			continue
		}
		if deleted {
			result.reclaimed = append(result.reclaimed, volume.Name)
		}
	}
	return errors.Join(errs...)
}

// reclaimError is returned if a claim could not be deleted.
type reclaimError struct {
	claim string
	err   error
}

func (e *reclaimError) Error() string {
	return fmt.Sprintf("delete volume claim %s: %v", e.claim, e.err)
}

func (e *reclaimError) Unwrap() error { return e.err }

// deleteClaim deletes a claim. deleted is false if another client has deleted it.
func (c *Controller) deleteClaim(ctx context.Context, cluster *v1alpha1.MarekvsCluster, volume scale.Volume) (deleted bool, err error) {
	claims := c.Kube.CoreV1().PersistentVolumeClaims(cluster.Namespace)
	live, err := claims.Get(ctx, volume.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if len(volumesOf(cluster, []*corev1.PersistentVolumeClaim{live})) == 0 {
		return false, errStale
	}
	err = claims.Delete(ctx, volume.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: &live.UID, ResourceVersion: &live.ResourceVersion,
	}})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
