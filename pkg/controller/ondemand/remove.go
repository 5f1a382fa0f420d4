// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// removePair removes the machine of a Pod that is not in the cache, once the API
// server says that it is gone or has finished. The machine of one that lives, and
// does not ask for it any more, stays.
func (c *Controller) removePair(ctx context.Context, seen observation) (time.Duration, error) {
	namespace, name := podNamed(seen)
	if name == "" {
		klog.FromContext(ctx).Info("Machine is kept, because it does not say any more which Pod it was made for")
		return livingRetry, nil
	}
	living, err := c.lives(ctx, namespace, name, seen.uid)
	if err != nil || living {
		return livingRetry, err
	}

	machine := seen.machine
	if machine == nil {
		if machine, err = c.liveMachine(ctx, seen); err != nil {
			return 0, err
		}
	}
	switch {
	case leaving(machine):
		return 0, nil
	case machine != nil:
		err = c.deleteMachine(ctx, machine)
	default:
		err = c.deleteNstanceMachine(ctx, seen.nstanceMachine)
	}
	if err == nil {
		klog.FromContext(ctx).Info("Machine removed, its Pod is gone or has finished", "pod", klog.KRef(namespace, name))
	}
	return 0, err
}

// removeMachine removes a Machine whose NstanceMachine somebody has deleted. It
// would never come to anything again.
func (c *Controller) removeMachine(ctx context.Context, machine *clusterv1.Machine) error {
	_, err := c.nstanceMachines.Get(ctx, machine.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		// The cache will show it.
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for NstanceMachine %s: %w", klog.KObj(machine), err)
	}
	klog.FromContext(ctx).Info("Machine removed, its NstanceMachine is gone")
	return c.deleteMachine(ctx, machine)
}

// liveMachine asks the API server for the Machine of an NstanceMachine; nil means
// that there is none. Without it Cluster API has nothing to drain by.
func (c *Controller) liveMachine(ctx context.Context, seen observation) (*clusterv1.Machine, error) {
	machine, err := c.machines.Get(ctx, machineName(seen.uid), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && foreign(seen.uid, machine) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the Machine of NstanceMachine %s: %w", klog.KObj(seen.nstanceMachine), err)
	}
	return machine, nil
}

func (c *Controller) deleteMachine(ctx context.Context, machine *clusterv1.Machine) error {
	err := c.machines.Delete(ctx, machine.Name, controller.Exactly(machine))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Machine %s: %w", klog.KObj(machine), err)
	}
	return nil
}

func (c *Controller) deleteNstanceMachine(ctx context.Context, machine *v1beta1.NstanceMachine) error {
	err := c.nstanceMachines.Delete(ctx, machine.Name, controller.Exactly(machine))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete NstanceMachine %s: %w", klog.KObj(machine), err)
	}
	return nil
}

// podNamed is the Pod that a machine says it was made for, empty when it does not.
func podNamed(seen observation) (namespace, name string) {
	var noted map[string]string
	switch {
	case seen.machine != nil:
		noted = seen.machine.Annotations
	case seen.nstanceMachine != nil:
		noted = seen.nstanceMachine.Annotations
	}
	namespace, name = noted[v1beta1.AnnotationPodNamespace], noted[v1beta1.AnnotationPodName]
	if namespace == "" {
		return "", ""
	}
	return namespace, name
}
