// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// findLost returns the nodes whose volumes are lost, or are to be replaced on request, or whose claims are being deleted,
// and their claims by ordinal. A volume that cannot be read is not lost.
func (c *Controller) findLost(
	ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet,
) (lost []scale.Lost, claims map[int32]*corev1.PersistentVolumeClaim, err error) {
	now, since := c.Clock.Now(), map[types.UID]time.Time{}
	claims = c.readClaims(cluster)
	pods := map[int32]*corev1.Pod{}
	for _, pod := range c.readPods(set) {
		ordinal, _ := podOrdinal(set.Name, pod.Name)
		pods[ordinal] = pod
	}
	var errs []error
	for ordinal := range ptr.Deref(set.Spec.Replicas, 1) {
		claim := claims[ordinal]
		if claim == nil || !hasLabels(claim, children.Labels(cluster.Name)) {
			continue
		}
		why, err := c.whyLost(ctx, claim, pods[ordinal])
		if err != nil {
			errs = append(errs, err)
		}
		node := scale.Lost{
			Ordinal: ordinal, Requested: claim.Annotations[v1alpha1.AnnotationReplace] == "true", Why: why,
			Begun: set.Annotations[v1alpha1.AnnotationReplacing] == string(claim.UID), Deleting: claim.DeletionTimestamp != nil,
		}
		if pod := pods[ordinal]; unbound(claim) && (pod == nil || neverRan(pod)) {
			node.Deleting = false // it has no data
		}
		if at, known := m.lost[claim.UID]; why != "" || known && err != nil {
			if !known {
				at = now
			}
			since[claim.UID], node.For = at, now.Sub(at)
		}
		if node.Requested || node.Begun || node.Deleting || node.Why != "" {
			lost = append(lost, node)
		}
	}
	m.lost = since
	return lost, claims, errors.Join(errs...)
}

// whyLost returns why the volume of a claim is lost, empty if it is not known to be. The volume of a Pod that
// has a Node is there, as far as Kubernetes knows.
func (c *Controller) whyLost(ctx context.Context, claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) (string, error) {
	name := claim.Spec.VolumeName
	if claim.Status.Phase == corev1.ClaimLost {
		return fmt.Sprintf("volume %s of claim %s no longer exists", name, claim.Name), nil
	}
	if name == "" || pod == nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || describe(pod, 0).Ready {
		return "", nil
	}
	volume, err := c.Kube.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil // the phase of the claim follows
	case err != nil:
		return "", fmt.Errorf("read volume %s of claim %s: %w", name, claim.Name, err)
	}
	hosts := hostsOf(volume)
	if len(hosts) == 0 {
		return "", nil
	}
	gone, err := c.goneNodes(ctx, hosts)
	if err != nil || !gone {
		return "", err
	}
	return fmt.Sprintf("volume %s of claim %s is on Kubernetes Node %s, which does not exist", name, claim.Name, strings.Join(hosts, ", ")), nil
}

// hostsOf returns the Kubernetes Nodes that alone can use a volume, none if the volume does not name Nodes. A
// zone without Nodes may get some.
func hostsOf(volume *corev1.PersistentVolume) []string {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return nil
	}
	var hosts []string
	for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
		named := false
		for _, requirement := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			if requirement.Operator == corev1.NodeSelectorOpIn && (requirement.Key == corev1.LabelHostname || requirement.Key == metav1.ObjectNameField) {
				named = true
				hosts = append(hosts, requirement.Values...)
			}
		}
		if !named {
			return nil // one of the terms may be true of another Node
		}
	}
	return hosts
}

// goneNodes reports whether no Kubernetes Node has one of the names, or has it in its label. If there is no
// Node at all, nothing is known.
func (c *Controller) goneNodes(ctx context.Context, names []string) (bool, error) {
	nodes := c.Kube.CoreV1().Nodes()
	labeled, err := labels.NewRequirement(corev1.LabelHostname, selection.In, names)
	if err != nil {
		return false, nil //nolint:nilerr // no Node can have such a label
	}
	for _, selector := range []string{labels.NewSelector().Add(*labeled).String(), ""} {
		list, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: 1})
		if err != nil {
			return false, fmt.Errorf("list Nodes %s: %w", strings.Join(names, ", "), err)
		}
		if (len(list.Items) > 0) == (selector != "") {
			return false, nil
		}
	}
	for _, name := range names {
		_, err := nodes.Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			return false, nil
		case !apierrors.IsNotFound(err):
			return false, fmt.Errorf("read Node %s: %w", name, err)
		}
	}
	return true, nil
}

// replaceVolume deletes the claim and the Pod of a node whose replacement an earlier sync has begun, after
// confirm. The StatefulSet controller creates both again. Neither is deleted if it has changed since it was
// read. A Pod of a Kubernetes Node that does not respond is not deleted by force: its container may run.
func (c *Controller) replaceVolume(ctx context.Context, set *appsv1.StatefulSet, result *syncResult) error {
	next := &result.decision.Replacement
	if next.Node == nil || !next.Node.Begun || next.Waiting != nil {
		return nil
	}
	if _, err := c.confirm(ctx, set); err != nil {
		return err
	}
	claim := result.claims[next.Node.Ordinal]
	deleting := claim.DeletionTimestamp != nil
	if !deleting {
		err := c.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion},
		})
		if apierrors.IsNotFound(err) {
			return errStale
		}
		if err != nil {
			return fmt.Errorf("delete volume claim %s, to replace it: %w", claim.Name, err)
		}
		result.replacedClaim = claim.Name
	}
	name := fmt.Sprintf("%s-%d", set.Name, next.Node.Ordinal)
	for _, pod := range c.readPods(set) {
		if pod.Name != name || pod.DeletionTimestamp != nil {
			continue
		}
		err := c.Kube.CoreV1().Pods(set.Namespace).Delete(ctx, name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete Pod %s, to replace its volume claim %s: %w", name, claim.Name, err)
		}
		if deleting && err == nil {
			result.replacedPod = name
		}
	}
	return nil
}

// volumesAvailable is False while a volume is lost, is to be replaced, or is being replaced.
func volumesAvailable(result *syncResult) metav1.Condition {
	if reason, message := replacing(result); reason != "" {
		return condition(v1alpha1.ConditionVolumesAvailable, false, reason, message+".")
	}
	return condition(v1alpha1.ConditionVolumesAvailable, true, "", "")
}

// replacing describes what is done about a lost volume, empty if there is none.
func replacing(result *syncResult) (reason, message string) {
	next := &result.decision.Replacement
	switch {
	case next.Waiting != nil:
		return next.Waiting.Reason, next.Waiting.Message
	case next.Node != nil:
		return v1alpha1.ReasonReplacing, fmt.Sprintf("volume claim %s is being replaced%s", result.claims[next.Node.Ordinal].Name, because(next.Node))
	}
	return "", ""
}

// because returns why a node is replaced, as the end of a sentence.
func because(node *scale.Lost) string {
	if node.Why != "" {
		return ": " + node.Why
	}
	return " on request"
}

// needsUser reports whether a replacement waits for something that only a user can do.
func needsUser(cluster *v1alpha1.MarekvsCluster, reason string) bool {
	switch reason {
	case v1alpha1.ReasonVolumeLost:
		return cluster.Spec.Storage.ReplaceLostAfterSeconds == 0
	case v1alpha1.ReasonSingleCopy, v1alpha1.ReasonTooManyLost:
		return true
	}
	return false
}
