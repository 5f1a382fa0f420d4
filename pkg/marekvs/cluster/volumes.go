// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// expansion is how far the volumes of the nodes have the size of the spec.
type expansion struct {
	size resource.Quantity
	// waiting is why not every volume has the size, nil if every volume has it.
	waiting *scale.Block
	// resize has the claims whose request is to be changed.
	resize []claimResize
	// recreate is true if the StatefulSet is to be created again with claims of the size.
	recreate bool
	// unbound has the claims without a volume whose requests are too large, and which the StatefulSet controller would
	// create with the size.
	unbound []*corev1.PersistentVolumeClaim
	// reducibleTo is the size of the largest volume that still grows, 0 if there is no volume yet, nil if no volume grows.
	reducibleTo *resource.Quantity
}

// claimResize is a change of the request of a claim.
type claimResize struct {
	claim   *corev1.PersistentVolumeClaim
	request resource.Quantity
	raised  bool
}

// blocked reports whether a volume cannot grow until the user changes something.
func (e *expansion) blocked() bool {
	return e.waiting != nil && e.waiting.Reason == v1alpha1.ReasonExpansionNotAllowed
}

// wait records why a volume does not have the size. A reason that needs the user comes first.
func (e *expansion) wait(reason, format string, args ...any) {
	if e.waiting == nil || reason == v1alpha1.ReasonExpansionNotAllowed && !e.blocked() {
		e.waiting = &scale.Block{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
}

// planExpansion compares the volume claims of the nodes, and the claims that the StatefulSet creates, with
// the size of the spec. Claims can grow if their StorageClass allows it
// (https://kubernetes.io/docs/concepts/storage/persistent-volumes/#expanding-persistent-volumes-claims).
// The claims of a StatefulSet cannot be changed
// (https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#volume-claim-templates).
func (c *Controller) planExpansion(ctx context.Context, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet, result *syncResult) error {
	e := &result.expansion
	e.size = *cluster.Spec.Storage.Size
	claims, classes := c.readClaims(cluster), map[string]string{}
	requested, bound := true, false
	for ordinal := range result.observed.Replicas {
		claim := claims[ordinal]
		if claim == nil || claim.DeletionTimestamp != nil || !hasLabels(claim, children.Labels(cluster.Name)) {
			continue // the StatefulSet controller creates it again
		}
		if !unbound(claim) {
			bound = true
			e.noteReducible(claim)
		}
		request := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if request.Cmp(e.size) >= 0 {
			e.reduce(claim, result.observed.Empty[ordinal])
			e.checkCapacity(claim)
			continue
		}
		if claim.Status.Phase != corev1.ClaimBound {
			requested = false
			e.wait(v1alpha1.ReasonExpanding, "volume claim %s has no volume yet, and can grow to %s only then", claim.Name, &e.size)
			continue
		}
		why, err := c.notExpandable(ctx, claim, classes)
		if err != nil {
			*e = expansion{waiting: &scale.Block{Reason: v1alpha1.ReasonExpanding, Message: err.Error()}, reducibleTo: cluster.Status.StorageReducibleTo}
			return err
		}
		if why != "" {
			requested = false
			e.wait(v1alpha1.ReasonExpansionNotAllowed, "volume claim %s cannot grow from %s to %s: %s", claim.Name, &request, &e.size, why)
			continue
		}
		e.resize = append(e.resize, claimResize{claim: claim, request: e.size, raised: true})
		e.wait(v1alpha1.ReasonExpanding, "volume claim %s is to grow from %s to %s", claim.Name, &request, &e.size)
	}
	if !bound && len(result.observed.Empty) == int(result.observed.Replicas) {
		e.reducibleTo = &resource.Quantity{}
	}
	if creates := children.StorageOf(set); creates != nil && creates.Cmp(e.size) != 0 {
		because := keepStatefulSet(cluster, result)
		e.recreate = requested && len(e.resize) == 0 && because == ""
		e.unbound = nil // they would get the same size again
		e.wait(v1alpha1.ReasonExpanding, "the StatefulSet creates volume claims of %s until it is created again with %s%s", creates, &e.size, because)
	}
	return nil
}

// noteReducible notes the size of a volume that has less than its claim requests, or is to get more.
func (e *expansion) noteReducible(claim *corev1.PersistentVolumeClaim) {
	capacity, request := claim.Status.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if capacity.Cmp(request) >= 0 && capacity.Cmp(e.size) >= 0 {
		return
	}
	if e.reducibleTo == nil || capacity.Cmp(*e.reducibleTo) > 0 {
		e.reducibleTo = &capacity
	}
}

// reduce lowers the request of a claim that was raised to a size that the spec no longer has, while its volume has not
// grown. Kubernetes accepts only more than the volume has
// (https://kubernetes.io/docs/concepts/storage/persistent-volumes/#recovering-from-failure-when-expanding-volumes). A
// claim without a volume cannot be changed: it is created again if nothing has run with it. A request that a user has
// raised stays.
func (e *expansion) reduce(claim *corev1.PersistentVolumeClaim, empty bool) {
	capacity, request := claim.Status.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case request.Cmp(e.size) == 0:
	case unbound(claim) && empty:
		e.unbound = append(e.unbound, claim)
		e.wait(v1alpha1.ReasonExpanding, "volume claim %s has no volume and is to be created again with %s instead of %s", claim.Name, &e.size, &request)
	case claim.Status.Phase == corev1.ClaimBound && claim.Annotations[v1alpha1.AnnotationRequestedSize] == request.String():
		least := capacity.DeepCopy()
		least.Add(*resource.NewQuantity(1, resource.BinarySI))
		if least.Cmp(e.size) < 0 {
			least = e.size
		}
		if least.Cmp(request) < 0 {
			e.resize = append(e.resize, claimResize{claim: claim, request: least})
		}
	}
}

// checkCapacity waits for the volume of a claim that requests the size.
func (e *expansion) checkCapacity(claim *corev1.PersistentVolumeClaim) {
	capacity := claim.Status.Capacity[corev1.ResourceStorage]
	if claim.Status.Phase != corev1.ClaimBound || capacity.Cmp(e.size) >= 0 {
		return
	}
	state := ""
	for _, condition := range claim.Status.Conditions {
		if condition.Status == corev1.ConditionTrue {
			state += fmt.Sprintf("; %s: %s", condition.Type, condition.Message)
		}
	}
	e.wait(v1alpha1.ReasonExpanding, "the volume of claim %s has %s of %s%s", claim.Name, &capacity, &e.size, state)
}

// notExpandable returns why a claim cannot grow, empty if it can. classes has the results by class.
func (c *Controller) notExpandable(ctx context.Context, claim *corev1.PersistentVolumeClaim, classes map[string]string) (string, error) {
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" {
		return "it has no StorageClass", nil
	}
	if why, known := classes[name]; known {
		return why, nil
	}
	why := ""
	class, err := c.Kube.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		why = fmt.Sprintf("its StorageClass %s does not exist", name)
	case err != nil:
		return "", fmt.Errorf("read StorageClass %s of volume claim %s: %w", name, claim.Name, err)
	case !ptr.Deref(class.AllowVolumeExpansion, false):
		why = fmt.Sprintf("allowVolumeExpansion of its StorageClass %s is not true", name)
	}
	classes[name] = why
	return why, nil
}

// keepStatefulSet returns why the StatefulSet must not be deleted now, as the end of a sentence; empty if
// it may be. While it does not exist, Pods that end are not created again, and its size is only known from
// the status of the cluster.
func keepStatefulSet(cluster *v1alpha1.MarekvsCluster, result *syncResult) string {
	o, decision := result.observed, &result.decision
	switch {
	case decision.Step.Replicas != o.Replicas:
		return ", after the change of the size"
	case len(o.Lost) > 0:
		return ", after the replacement of a volume"
	case !decision.Rollout.Done, o.CurrentRevision != o.UpdateRevision, o.OnDelete:
		return ", after the update of the Pods"
	case !o.Current, o.StatusReplicas != o.Replicas, int32(len(o.Pods)) != o.Replicas, !readyOrEmpty(o):
		return fmt.Sprintf(", when all Pods are ready: %d of %d are", o.Ready(), o.Replicas)
	case cluster.Status.Replicas != o.Replicas:
		return ", when the status has the size"
	}
	return ""
}

// readyOrEmpty reports whether every Pod is ready or has never run: such a Pod cannot end.
func readyOrEmpty(o *scale.Observation) bool {
	for _, pod := range o.Pods {
		if !pod.Ready && !o.Empty[pod.Ordinal] {
			return false
		}
	}
	return true
}

// resizeClaims changes the requests of volume claims, and notes which it has written: later requests of users differ.
func (c *Controller) resizeClaims(ctx context.Context, result *syncResult) error {
	var errs []error
	for _, resize := range result.expansion.resize {
		claim, size := resize.claim, resize.request.String()
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{
				"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "annotations": map[string]any{v1alpha1.AnnotationRequestedSize: size},
			},
			"spec": map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": size}}},
		})
		if err == nil {
			_, err = c.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch,
				metav1.PatchOptions{FieldManager: v1alpha1.ManagerName})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("change the size of volume claim %s to %s: %w", claim.Name, size, err))
			continue
		}
		result.resized = append(result.resized, resize)
	}
	return errors.Join(errs...)
}

// recreateClaims deletes claims without a volume, which the StatefulSet controller creates again with the size. A claim
// that has got a volume meanwhile is not deleted.
func (c *Controller) recreateClaims(ctx context.Context, result *syncResult) error {
	var errs []error
	for _, claim := range result.expansion.unbound {
		err := c.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete volume claim %s, to create it with %s: %w", claim.Name, &result.expansion.size, err))
		}
	}
	return errors.Join(errs...)
}

// deleteForClaims deletes the StatefulSet and leaves its Pods, if the expansion needs it. The next syncs
// create it again for these Pods.
func (c *Controller) deleteForClaims(ctx context.Context, set *appsv1.StatefulSet, result *syncResult) error {
	if !result.expansion.recreate {
		return nil
	}
	version, err := c.confirm(ctx, set)
	if err != nil {
		return err
	}
	err = c.Kube.AppsV1().StatefulSets(set.Namespace).Delete(ctx, set.Name, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan),
		Preconditions:     &metav1.Preconditions{UID: &set.UID, ResourceVersion: &version},
	})
	if apierrors.IsNotFound(err) {
		return errStale
	}
	if err != nil {
		return fmt.Errorf("delete StatefulSet %s without its Pods, to create it with volume claims of %s: %w", set.Name, &result.expansion.size, err)
	}
	result.deletedForClaims = true
	return nil
}

// volumesExpanded is True when the volume of every node has the size of the spec.
func volumesExpanded(result *syncResult) metav1.Condition {
	if waiting := result.expansion.waiting; waiting != nil {
		return condition(v1alpha1.ConditionVolumesExpanded, false, waiting.Reason, waiting.Message+".")
	}
	return condition(v1alpha1.ConditionVolumesExpanded, true, "", "")
}
