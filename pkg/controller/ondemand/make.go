// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// namePrefix begins the names of all machines that are made here.
const namePrefix = "on-demand-"

// Vars that tell the group's template for which Pod an instance is. A label of
// the Node may be made of them.
const (
	varPodNamespace = "pod_namespace"
	varPodName      = "pod_name"
	varPodUID       = "pod_uid"
)

// machineName is the name of the Machine and of the NstanceMachine of a Pod.
func machineName(pod types.UID) string { return namePrefix + string(pod) }

// podOf is the UID of the Pod whose machine has that name.
func podOf(machine string) (types.UID, bool) {
	uid, ok := strings.CutPrefix(machine, namePrefix)
	return types.UID(uid), ok && uid != ""
}

// makePair makes the machine of a Pod. The NstanceMachine comes first: a Machine
// without it is an error to Cluster API, while it waits for its Machine.
func (c *Controller) makePair(ctx context.Context, pod *metav1.PartialObjectMetadata, wanted order) (*complaint, error) {
	of := slot{pod.Namespace, wanted.group}
	if !c.limiter.claim(pod.UID, of) {
		return limitReached(of, c.limiter.limit), nil
	}
	refused, err := c.makeNstanceMachine(ctx, pod, wanted)
	if refused != nil || err != nil {
		return refused, err
	}
	refused, err = c.makeMachine(ctx, pod)
	if refused == nil && err == nil {
		klog.FromContext(ctx).Info("Machine made for a Pod", "pod", klog.KObj(pod), "group", wanted.group)
	}
	return refused, err
}

func (c *Controller) makeNstanceMachine(ctx context.Context, pod *metav1.PartialObjectMetadata, wanted order) (*complaint, error) {
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
	}, metav1.CreateOptions{FieldManager: controller.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		made, err = c.nstanceMachines.Get(ctx, machineName(pod.UID), metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("create the NstanceMachine of Pod %s: %w", klog.KObj(pod), err)
	}
	if foreign(pod.UID, made) {
		return nameTaken(pod.UID), nil
	}
	c.nstanceMachineWrites.Wrote(made)
	return nil, nil
}

func (c *Controller) makeMachine(ctx context.Context, pod *metav1.PartialObjectMetadata) (*complaint, error) {
	made, err := c.machines.Create(ctx, &clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: c.newMeta(pod),
		Spec: clusterv1.MachineSpec{
			ClusterName: c.clusterName,
			// Nstance boots its instances itself. A name, even an empty one, tells
			// Cluster API that there is nothing to wait for.
			Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: machineName(pod.UID),
			},
		},
	}, metav1.CreateOptions{FieldManager: controller.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		made, err = c.machines.Get(ctx, machineName(pod.UID), metav1.GetOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("create the Machine of Pod %s: %w", klog.KObj(pod), err)
	}
	if foreign(pod.UID, made) {
		return nameTaken(pod.UID), nil
	}
	c.machineWrites.Wrote(made)
	return nil, nil
}

// newMeta names the Pod without referring to it: an owner in another namespace
// would have the objects collected as garbage.
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
