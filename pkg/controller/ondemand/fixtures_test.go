// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	namespace   = "nstance-system"
	clusterName = "cluster--default"
)

// newPod is a Pod that asks for a machine of a group.
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

// plainPod is a Pod that asks for nothing.
func plainPod(name string) *corev1.Pod {
	pod := newPod(name, "")
	pod.Annotations = map[string]string{"example.com/note": "nothing"}
	return pod
}

// inCache is a Pod as the cache has it.
func inCache(pod *corev1.Pod) *metav1.PartialObjectMetadata {
	return essentials(&metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
}

func newCluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: clusterName}}
}

func paused(cluster *clusterv1.Cluster) *clusterv1.Cluster {
	cluster.Spec.Paused = ptr.To(true)
	return cluster
}

// newMachine and newNstanceMachine are the machine of a Pod, as far as is needed.
func newMachine(pod *corev1.Pod) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: madeFor(pod)}
}

func newNstanceMachine(pod *corev1.Pod) *v1beta1.NstanceMachine {
	machine := &v1beta1.NstanceMachine{ObjectMeta: madeFor(pod)}
	machine.Spec.GroupRef.Name = v1beta1.Identifier(pod.Annotations[v1beta1.AnnotationOnDemandGroup])
	return machine
}

func madeFor(pod *corev1.Pod) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: "on-demand-" + string(pod.UID), UID: "uid-of-" + pod.UID, ResourceVersion: "1",
		Labels:      map[string]string{v1beta1.LabelPodUID: string(pod.UID)},
		Annotations: map[string]string{v1beta1.AnnotationPodNamespace: pod.Namespace, v1beta1.AnnotationPodName: pod.Name},
	}
}

// deleting is object as it is once its deletion was asked for.
func deleting[T metav1.Object](object T) T {
	object.SetDeletionTimestamp(ptr.To(metav1.Now()))
	object.SetFinalizers([]string{"example.com/wait"})
	return object
}

// owned is a machine to which Cluster API has given its Machine as owner.
func owned(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: "uid-of-owner", Controller: ptr.To(true),
	}}
	return machine
}

func withPause[T metav1.Object](object T) T {
	object.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
	return object
}

// server is what is known of one shard.
type server struct {
	synced bool
	groups []shard.Group
}

// servers are the configured shards by id, and the cache of their groups.
type servers map[string]*server

// having is a shard that is known, with these groups.
func having(groups ...string) *server {
	s := &server{synced: true}
	for _, key := range groups {
		s.groups = append(s.groups, shard.Group{Key: key})
	}
	return s
}

func (s servers) Shards() []string {
	var ids []string
	for id := range s {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, strings.Compare)
	return ids
}

func (s servers) Get(id, key string) (shard.Group, bool) {
	for _, group := range s.List(id) {
		if group.Key == key {
			return group, true
		}
	}
	return shard.Group{}, false
}

func (s servers) List(id string) []shard.Group { return s[id].groups }

func (s servers) HasSynced(id string) bool { return s[id].synced }
