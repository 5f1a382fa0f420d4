// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

const (
	namespace   = controllertest.Namespace
	clusterName = controllertest.ClusterName
)

// newPod returns a Pod that requests a machine of a group.
func newPod(name, group string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("pod-" + name),
			Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// plainPod returns a Pod that requests no machine.
func plainPod(name string) *corev1.Pod {
	pod := newPod(name, "")
	pod.Annotations = map[string]string{"example.com/note": "nothing"}
	return pod
}

// inCache returns a Pod as the cache has it.
func inCache(pod *corev1.Pod) *metav1.PartialObjectMetadata {
	return essentials(&metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
}

// newMachine and newNstanceMachine return the pair of a Pod without most of its spec.
func newMachine(pod *corev1.Pod) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metaFor(pod)}
}

func newNstanceMachine(pod *corev1.Pod) *v1beta1.NstanceMachine {
	machine := &v1beta1.NstanceMachine{ObjectMeta: metaFor(pod)}
	machine.Spec.GroupRef.Name = v1beta1.Identifier(pod.Annotations[v1beta1.AnnotationOnDemandGroup])
	return machine
}

func metaFor(pod *corev1.Pod) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: "on-demand-" + string(pod.UID), UID: "uid-of-" + pod.UID, ResourceVersion: "1",
		Labels:      map[string]string{v1beta1.LabelPodUID: string(pod.UID)},
		Annotations: map[string]string{v1beta1.AnnotationPodNamespace: pod.Namespace, v1beta1.AnnotationPodName: pod.Name},
	}
}

// owned adds the Machine as owner, as Cluster API does.
func owned(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: "uid-of-owner", Controller: ptr.To(true),
	}}
	return machine
}

// newShards returns shard a with groups.
func newShards(groups ...string) *shardtest.Shards {
	shards := shardtest.New()
	setGroups(shards, "a", groups...)
	return shards
}

// setGroups replaces a shard, or adds it, by one with groups.
func setGroups(shards *shardtest.Shards, id string, groups ...string) {
	shards.ByID[id] = shardtest.NewShard()
	for _, key := range groups {
		shards.SetGroup(id, shard.Group{Key: key})
	}
}
