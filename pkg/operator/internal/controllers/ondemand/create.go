// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"math"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// namePrefix is the prefix of the name of each Machine and NstanceMachine of a Pod.
const namePrefix = "on-demand-"

// Vars of an instance that name its Pod. The template of the group can use them, for example
// in a label of the Node.
const (
	varPodNamespace = "pod_namespace"
	varPodName      = "pod_name"
	varPodUID       = "pod_uid"
)

// machineName returns the name of the Machine and of the NstanceMachine of a Pod.
func machineName(pod types.UID) string { return namePrefix + string(pod) }

// podOf returns the UID in the name of a Pod's machine.
func podOf(machine string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(machine, namePrefix)
	return types.UID(uid), ok && uid != ""
}

// createPair creates the machine of a Pod that has no Node. The NstanceMachine is created
// first: Cluster API reports an error for a Machine without it, while an NstanceMachine waits
// for its Machine.
func (c *Controller) createPair(ctx context.Context, pod *metav1.PartialObjectMetadata, wanted request) (*rejection, error) {
	if c.rejections.isBound(pod.UID) {
		return nil, nil
	}
	of := slot{pod.Namespace, wanted.group}
	if !c.limiter.claim(pod.UID, of) {
		c.metrics.limitHits.Inc()
		return limitReached(of, c.limiter.limit), nil
	}
	exists, needs, err := c.needsMachine(ctx, pod)
	if err != nil {
		return nil, err
	}
	if !needs {
		if freed, had := c.limiter.release(pod.UID); had {
			c.enqueueSlot(freed)
		}
		if !exists {
			return nil, nil
		}
		return alreadyBound(), nil
	}
	refused, err := c.createNstanceMachine(ctx, pod, wanted)
	if refused != nil || err != nil {
		return refused, err
	}
	refused, err = c.createMachine(ctx, pod)
	if refused == nil && err == nil {
		klog.FromContext(ctx).Info("Machine created for a Pod", "pod", klog.KObj(pod), "group", wanted.group)
	}
	return refused, err
}

func (c *Controller) createNstanceMachine(ctx context.Context, pod *metav1.PartialObjectMetadata, wanted request) (*rejection, error) {
	made, err := c.nstanceMachines.Create(ctx, &v1beta1.NstanceMachine{
		ObjectMeta: c.newMeta(pod),
		Spec: v1beta1.NstanceMachineSpec{
			GroupRef:     v1beta1.GroupReference{Name: v1beta1.Identifier(wanted.group)},
			InstanceType: wanted.instanceType,
			Vars: map[string]string{
				varPodNamespace: pod.Namespace,
				varPodName:      pod.Name,
				varPodUID:       string(pod.UID),
			},
		},
	}, metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		made, err = c.nstanceMachines.Get(ctx, machineName(pod.UID), metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("create the NstanceMachine of Pod %s: %w", klog.KObj(pod), err)
	}
	if foreign(pod.UID, made) {
		return nameTaken(pod.UID), nil
	}
	c.nstanceMachineWrites.Record(made)
	return nil, nil
}

func (c *Controller) createMachine(ctx context.Context, pod *metav1.PartialObjectMetadata) (*rejection, error) {
	made, err := c.machines.Create(ctx, &clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: c.newMeta(pod),
		Spec: clusterv1.MachineSpec{
			ClusterName: c.clusterName,
			// The instance gets its bootstrap data from Nstance. With a name, even an empty
			// name, Cluster API does not wait for bootstrap data (docs/capi.md#machines).
			Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: machineName(pod.UID),
			},
			Deletion: c.deletionOf(pod),
		},
	}, metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		made, err = c.machines.Get(ctx, machineName(pod.UID), metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("create the Machine of Pod %s: %w", klog.KObj(pod), err)
	}
	if foreign(pod.UID, made) {
		return nameTaken(pod.UID), nil
	}
	c.machineWrites.Record(made)
	return nil, nil
}

// deletionOf returns how long Cluster API may drain the Node of a Pod's machine, and then wait
// for the detachment of its volumes. Without a limit, a Pod whose disruption budget allows no
// eviction would keep the machine for ever: the annotation of the Pod can only shorten the
// operator's limit.
func (c *Controller) deletionOf(pod *metav1.PartialObjectMetadata) clusterv1.MachineDeletionSpec {
	timeout := c.drainTimeout
	if own, given, _ := annotatedDrainTimeout(pod); given && own > 0 && (timeout == 0 || own < timeout) {
		timeout = own
	}
	if timeout == 0 {
		return clusterv1.MachineDeletionSpec{}
	}
	seconds := ptr.To(int32(math.Ceil(timeout.Seconds())))
	return clusterv1.MachineDeletionSpec{NodeDrainTimeoutSeconds: seconds, NodeVolumeDetachTimeoutSeconds: seconds}
}

// newMeta refers to the Pod by annotations instead of an owner reference: the garbage
// collector deletes an object whose owner is in another namespace
// (https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents).
func (c *Controller) newMeta(pod *metav1.PartialObjectMetadata) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: c.namespace,
		Name:      machineName(pod.UID),
		Labels: map[string]string{
			clusterv1.ClusterNameLabel: c.clusterName,
			v1beta1.LabelPodUID:        string(pod.UID),
		},
		Annotations: map[string]string{
			v1beta1.AnnotationPodNamespace: pod.Namespace,
			v1beta1.AnnotationPodName:      pod.Name,
		},
	}
}
