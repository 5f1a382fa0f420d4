// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// unbound selects Pods that are not scheduled.
var unbound = fields.OneTermEqualSelector("spec.nodeName", "")

// podExists reports whether the API server has a Pod that has not finished.
func (c *Controller) podExists(ctx context.Context, namespace, name string, uid types.UID) (bool, error) {
	return c.podMatches(ctx, namespace, name, uid, unfinished)
}

// needsMachine reports whether the API server has a Pod that has not finished, and whether
// it still has no Node. The cache does not have the Nodes of Pods.
func (c *Controller) needsMachine(ctx context.Context, pod *metav1.PartialObjectMetadata) (exists, needs bool, err error) {
	needs, err = c.podMatches(ctx, pod.Namespace, pod.Name, pod.UID, fields.AndSelectors(unfinished, unbound))
	if needs || err != nil {
		return true, needs, err
	}
	exists, err = c.podExists(ctx, pod.Namespace, pod.Name, pod.UID)
	return exists, false, err
}

// podMatches reports whether the API server has a Pod with this UID that matches a selector. A
// Pod with the same name and another UID is another Pod.
func (c *Controller) podMatches(ctx context.Context, namespace, name string, uid types.UID, matching fields.Selector) (bool, error) {
	selector := fields.AndSelectors(fields.OneTermEqualSelector(metav1.ObjectNameField, name), matching)
	pods, err := c.podClient.Resource(podResource).Namespace(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return false, fmt.Errorf("read Pod %s/%s: %w", namespace, name, err)
	}
	for i := range pods.Items {
		if pods.Items[i].UID == uid {
			return true, nil
		}
	}
	return false, nil
}

// readMachine reads the Machine of an NstanceMachine from the API server, nil if it does not
// exist. If it exists, it must be deleted first, because Cluster API drains the Node of a
// Machine.
func (c *Controller) readMachine(ctx context.Context, observed observation) (*clusterv1.Machine, error) {
	machine, err := c.machines.Get(ctx, machineName(observed.uid), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && foreign(observed.uid, machine) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the Machine of NstanceMachine %s: %w", klog.KObj(observed.nstanceMachine), err)
	}
	return machine, nil
}

// nstanceMachineExists reports whether the API server has the NstanceMachine of a
// Machine.
func (c *Controller) nstanceMachineExists(ctx context.Context, machine *clusterv1.Machine) (bool, error) {
	_, err := c.nstanceMachines.Get(ctx, machine.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read NstanceMachine %s: %w", klog.KObj(machine), err)
	}
	return true, nil
}
