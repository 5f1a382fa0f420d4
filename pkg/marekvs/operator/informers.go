// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kubeinformers "k8s.io/client-go/informers"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	"nstance.dev/operator/pkg/marekvs/cluster"
)

// informers watch everything that the operator reads.
type informers struct {
	cluster.Informers

	start []func(context.Context)
}

func newInformers(clients *clients, options *Options) *informers {
	kinds := externalversions.NewSharedInformerFactoryWithOptions(clients.marekvs, options.ResyncPeriod,
		externalversions.WithNamespace(options.WatchNamespace))
	ours := kubeinformers.NewSharedInformerFactoryWithOptions(clients.kube, options.ResyncPeriod,
		kubeinformers.WithNamespace(options.WatchNamespace),
		kubeinformers.WithTransform(trim),
		kubeinformers.WithTweakListOptions(func(list *metav1.ListOptions) {
			list.LabelSelector = labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagerName}).String()
		}))
	all := &informers{Informers: cluster.Informers{
		Clusters:     kinds.Marekvs().V1alpha1().MarekvsClusters().Informer(),
		StatefulSets: ours.Apps().V1().StatefulSets().Informer(),
		Services:     ours.Core().V1().Services().Informer(),
		Budgets:      ours.Policy().V1().PodDisruptionBudgets().Informer(),
		Pods:         ours.Core().V1().Pods().Informer(),
		Claims:       ours.Core().V1().PersistentVolumeClaims().Informer(),
	}}
	all.start = append(all.start, kinds.StartWithContext, ours.StartWithContext)
	return all
}

// run starts all informers. They stop when ctx is done.
func (i *informers) run(ctx context.Context) {
	for _, start := range i.start {
		start(ctx)
	}
}

// trim drops what the operator never reads: who wrote what, and most of a Pod.
func trim(obj any) (any, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil //nolint:nilerr // what is not an object is not trimmed
	}
	object.SetManagedFields(nil)
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
		OwnerReferences: pod.OwnerReferences, CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
	}}
	kept.Status.PodIP = pod.Status.PodIP
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		kept.Status.ContainerStatuses = append(kept.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: status.Name, RestartCount: status.RestartCount, State: corev1.ContainerState{Waiting: status.State.Waiting},
		})
	}
	return kept, nil
}
