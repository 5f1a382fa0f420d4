// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
)

type (
	serviceConfiguration = corev1ac.ServiceApplyConfiguration
	budgetConfiguration  = policyv1ac.PodDisruptionBudgetApplyConfiguration
)

// apply has the options of every server-side apply.
var apply = metav1.ApplyOptions{FieldManager: v1alpha1.ManagerName, Force: true}

// notOwnedError is returned if an object has the name of a child and another or no
// controller.
type notOwnedError struct{ kind, name string }

func (e *notOwnedError) Error() string {
	return fmt.Sprintf("%s %s exists and is not controlled by this cluster", e.kind, e.name)
}

// ensured describes a child for ensure.
type ensured[T any, C any] struct {
	kind, name string
	informer   cache.SharedIndexInformer
	wanted     C
	// absent is true if wanted was computed for a child that does not exist yet.
	absent bool
	// spec returns the spec of the child. setUID sets the UID in wanted, so that the apply
	// fails if the child was deleted.
	spec   func(*T) any
	setUID func(C, *T)
	get    func(ctx context.Context, name string, options metav1.GetOptions) (*T, error)
	apply  func(ctx context.Context, wanted C, options metav1.ApplyOptions) (*T, error)
}

// ensure applies a child that differs from its last apply, and returns it. It returns nil
// if the child does not differ.
func ensure[T any, C any](ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, child ensured[T, C]) (*T, error) {
	present, err := find(ctx, cluster, child)
	if err != nil {
		return nil, err
	}
	id, wanted := child.kind+"/"+child.name, hashOf(child.wanted)
	if present != nil {
		object := any(present).(metav1.Object)
		if !children.IsOwned(object, cluster) {
			return nil, &notOwnedError{child.kind, child.name}
		}
		if child.absent {
			return nil, errStale
		}
		if m.applied[id] == (applied{wanted, stateOf(object, child.spec(present))}) {
			return nil, nil
		}
		child.setUID(child.wanted, present)
	}
	written, err := child.apply(ctx, child.wanted, apply)
	if err != nil {
		return nil, fmt.Errorf("apply %s %s: %w", child.kind, child.name, err)
	}
	m.applied[id] = applied{wanted, stateOf(any(written).(metav1.Object), child.spec(written))}
	return written, nil
}

// find returns an existing child, nil if it does not exist. It reads the API server if the
// cache does not have the child: the cache is limited to the label of the operator, and may
// be stale.
func find[T any, C any](ctx context.Context, cluster *v1alpha1.MarekvsCluster, child ensured[T, C]) (*T, error) {
	obj, exists, err := child.informer.GetStore().GetByKey(cluster.Namespace + "/" + child.name)
	if err != nil {
		return nil, fmt.Errorf("read %s %s from the cache: %w", child.kind, child.name, err)
	}
	if exists {
		return obj.(*T), nil
	}
	present, err := child.get(ctx, child.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", child.kind, child.name, err)
	}
	return present, nil
}

// ensureServices applies the Services and the PodDisruptionBudget. set is nil if there is no StatefulSet.
func (c *Controller) ensureServices(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet) error {
	services := c.Kube.CoreV1().Services(cluster.Namespace)
	var errs []error
	for _, wanted := range []*serviceConfiguration{children.Headless(cluster, c.Children), children.Client(cluster)} {
		_, err := ensure(ctx, m, cluster, ensured[corev1.Service, *serviceConfiguration]{
			kind: "Service", name: *wanted.Name, informer: c.Informers.Services, wanted: wanted,
			spec:   func(s *corev1.Service) any { return s.Spec },
			setUID: func(a *serviceConfiguration, s *corev1.Service) { a.WithUID(s.UID) },
			get:    services.Get, apply: services.Apply,
		})
		errs = append(errs, err)
	}
	budgets := c.Kube.PolicyV1().PodDisruptionBudgets(cluster.Namespace)
	_, err := ensure(ctx, m, cluster, ensured[policyv1.PodDisruptionBudget, *budgetConfiguration]{
		kind: "PodDisruptionBudget", name: cluster.Name, informer: c.Informers.Budgets, wanted: children.Budget(cluster, c.evictionDeletesVolume(cluster, set)),
		spec:   func(b *policyv1.PodDisruptionBudget) any { return b.Spec },
		setUID: func(a *budgetConfiguration, b *policyv1.PodDisruptionBudget) { a.WithUID(b.UID) },
		get:    budgets.Get, apply: budgets.Apply,
	})
	return errors.Join(append(errs, err)...)
}

// evictionDeletesVolume reports whether the claim of a node is being deleted and its Pod is not: when the Pod ends, the
// volume is deleted
// (https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection).
func (c *Controller) evictionDeletesVolume(cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet) bool {
	if set == nil {
		return false
	}
	claims := c.readClaims(cluster)
	for _, pod := range c.readPods(set) {
		ordinal, _ := podOrdinal(set.Name, pod.Name)
		if claim := claims[ordinal]; claim != nil && claim.DeletionTimestamp != nil && pod.DeletionTimestamp == nil {
			return true
		}
	}
	return false
}

// ensureStatefulSet applies the StatefulSet if it still has a resource version. An empty
// version means that it must not exist.
func (c *Controller) ensureStatefulSet(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, gossip string, size children.Size, version string) error {
	sets := c.Kube.AppsV1().StatefulSets(cluster.Namespace)
	written, err := ensure(ctx, m, cluster, ensured[appsv1.StatefulSet, *appsv1ac.StatefulSetApplyConfiguration]{
		kind: "StatefulSet", name: cluster.Name, informer: c.Informers.StatefulSets, wanted: children.StatefulSet(cluster, c.Children, gossip, size),
		absent: version == "",
		spec:   func(s *appsv1.StatefulSet) any { return s.Spec },
		setUID: func(a *appsv1ac.StatefulSetApplyConfiguration, s *appsv1.StatefulSet) {
			a.WithUID(s.UID).WithResourceVersion(version)
		},
		get: sets.Get, apply: sets.Apply,
	})
	if written != nil {
		c.setWrites.Record(written)
	}
	return err
}

// applied has the hashes of an apply configuration and of the object after the apply.
type applied struct{ wanted, object uint64 }

// hashOf returns a hash of the JSON encoding of values.
func hashOf(values ...any) uint64 {
	hash := fnv.New64a()
	_ = json.NewEncoder(hash).Encode(values)
	return hash.Sum64()
}

// stateOf returns a hash of the fields of a child that other writers may change.
func stateOf(object metav1.Object, spec any) uint64 {
	return hashOf(object.GetUID(), object.GetLabels(), object.GetAnnotations(), object.GetOwnerReferences(), spec)
}
