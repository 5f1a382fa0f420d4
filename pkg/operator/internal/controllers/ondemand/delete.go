// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// deletePair deletes the machine of a Pod that is not in the cache, if the API server does not
// have the Pod either or the Pod has finished. If the Pod exists but no longer requests the
// machine, the machine stays.
func (c *Controller) deletePair(ctx context.Context, observed observation) (time.Duration, error) {
	namespace, name := podOfPair(observed)
	if name == "" {
		klog.FromContext(ctx).Info("Keeping the machine, because its annotations do not name its Pod any more")
		return existingPodRetry, nil
	}
	exists, err := c.podExists(ctx, namespace, name, observed.uid)
	if err != nil || exists {
		return existingPodRetry, err
	}

	reason := fmt.Sprintf("its Pod %s was deleted or has finished", klog.KRef(namespace, name))
	machine := observed.machine
	if machine == nil {
		if machine, err = c.readMachine(ctx, observed); err != nil {
			return 0, err
		}
	}
	switch {
	case beingDeleted(machine):
		return 0, nil
	case machine != nil:
		err = c.deleteMachine(ctx, machine, reason)
	default:
		err = c.deleteNstanceMachine(ctx, observed.nstanceMachine, reason)
	}
	return 0, err
}

// deleteStrayMachine deletes a Machine whose NstanceMachine was deleted by another
// client. It would never get a Node.
func (c *Controller) deleteStrayMachine(ctx context.Context, machine *clusterv1.Machine) error {
	exists, err := c.nstanceMachineExists(ctx, machine)
	if err != nil || exists {
		return err
	}
	return c.deleteMachine(ctx, machine, "its NstanceMachine was deleted")
}

func (c *Controller) deleteMachine(ctx context.Context, machine *clusterv1.Machine, reason string) error {
	err := c.machines.Delete(ctx, machine.Name, controller.DeleteByUID(machine))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Machine %s: %w", klog.KObj(machine), err)
	}
	controllers.RecordMachineDeletion(ctx, c.recorder, machine, reason, err)
	return nil
}

func (c *Controller) deleteNstanceMachine(ctx context.Context, nstanceMachine *v1beta1.NstanceMachine, reason string) error {
	err := c.nstanceMachines.Delete(ctx, nstanceMachine.Name, controller.DeleteByUID(nstanceMachine))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete NstanceMachine %s: %w", klog.KObj(nstanceMachine), err)
	}
	controllers.LogDeletion(ctx, v1beta1.MachineKind, klog.KObj(nstanceMachine), reason, err)
	return nil
}

// podOfPair returns the Pod that the annotations of a pair name, empty without these
// annotations.
func podOfPair(observed observation) (namespace, name string) {
	var annotations map[string]string
	switch {
	case observed.machine != nil:
		annotations = observed.machine.Annotations
	case observed.nstanceMachine != nil:
		annotations = observed.nstanceMachine.Annotations
	}
	namespace, name = annotations[v1beta1.AnnotationPodNamespace], annotations[v1beta1.AnnotationPodName]
	if namespace == "" {
		return "", ""
	}
	return namespace, name
}
