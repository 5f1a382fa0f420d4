// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
)

// apply are the options of every server-side apply.
var apply = metav1.ApplyOptions{FieldManager: v1alpha1.ManagerName, Force: true}

// notOwnedError is the error of an object of a needed name that the cluster does not control.
type notOwnedError struct{ kind, name string }

func (e *notOwnedError) Error() string {
	return fmt.Sprintf("%s %s exists and is not controlled by this cluster", e.kind, e.name)
}

// ensured is a child that should exist.
type ensured[T any, C any] struct {
	kind, name string
	informer   cache.SharedIndexInformer
	wanted     C
	// absent is true when wanted is that of a child that does not exist.
	absent bool
	// spec returns the spec of the child, setUID makes wanted refer to an existing child only.
	spec   func(*T) any
	setUID func(C, *T)
	get    func(ctx context.Context, name string, options metav1.GetOptions) (*T, error)
	apply  func(ctx context.Context, wanted C, options metav1.ApplyOptions) (*T, error)
}

// ensure applies a child that is not as it should be, and returns it. It returns nil for a
// child that is as it should be.
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

// find returns an existing child, nil if there is none. The cache has only objects with the
// label of the operator, and may be older than the last write.
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

// ensureServices applies the Services and the disruption budget.
func (c *Controller) ensureServices(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster) error {
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
		kind: "PodDisruptionBudget", name: cluster.Name, informer: c.Informers.Budgets, wanted: children.Budget(cluster),
		spec:   func(b *policyv1.PodDisruptionBudget) any { return b.Spec },
		setUID: func(a *budgetConfiguration, b *policyv1.PodDisruptionBudget) { a.WithUID(b.UID) },
		get:    budgets.Get, apply: budgets.Apply,
	})
	return errors.Join(append(errs, err)...)
}

// ensureStatefulSet applies the StatefulSet, if it is still the one of a resource version. An
// empty version is that of a StatefulSet that does not exist.
func (c *Controller) ensureStatefulSet(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, size children.Size, version string) error {
	sets := c.Kube.AppsV1().StatefulSets(cluster.Namespace)
	written, err := ensure(ctx, m, cluster, ensured[appsv1.StatefulSet, *appsv1ac.StatefulSetApplyConfiguration]{
		kind: "StatefulSet", name: cluster.Name, informer: c.Informers.StatefulSets, wanted: children.StatefulSet(cluster, c.Children, size),
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
