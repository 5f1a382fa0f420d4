// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// newRecorder returns a recorder that writes each event to the cluster of its object.
func newRecorder(ctx context.Context, clients *clients) (events.EventRecorder, error) {
	ours, err := controller.NewRecorder(ctx, clients.kube, controllers.FieldManager, addToScheme)
	if err != nil || clients.workloadServer == "" {
		return ours, err
	}
	workload, err := controller.NewRecorder(ctx, clients.workload.Kube, controllers.FieldManager, addToScheme)
	if err != nil {
		return nil, err
	}
	return &eventRouter{EventRecorder: ours, workload: workload}, nil
}

// addToScheme adds the kinds that are not built in and get events. The objects of clients
// do not name their kind.
func addToScheme(scheme *runtime.Scheme) error {
	return errors.Join(v1beta1.AddToScheme(scheme), clusterv1.AddToScheme(scheme))
}

// eventRouter records events about Nodes and Pods in the workload cluster, and all others
// in that of our objects.
type eventRouter struct {
	events.EventRecorder
	workload events.EventRecorder
}

// Eventf implements events.EventRecorder.
func (r *eventRouter) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	switch regarding.(type) {
	// Only Pods are read without their spec.
	case *corev1.Node, *corev1.Pod, *metav1.PartialObjectMetadata:
		r.workload.Eventf(regarding, related, eventtype, reason, action, note, args...)
	default:
		r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
	}
}
