// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// byUID and byGroup index Pods by UID, and by the group that they name.
const (
	byUID   = "uid"
	byGroup = "group"
)

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// unfinished selects the Pods that have not finished. A Pod that finishes is deleted
// for the watch.
var unfinished = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// NewPodInformer returns an informer of the Pods of all namespaces that request a
// machine of a cluster and have not finished. cluster is the name of the NstanceCluster,
// and resync the period of resyncs, 0 for none. The cache has
// *metav1.PartialObjectMetadata with little more than name and UID. Other Pods are
// dropped on arrival, so that their number costs no memory.
func NewPodInformer(client metadata.Interface, cluster string, resync time.Duration) cache.SharedIndexInformer {
	requesting := newRequestingPods(client.Resource(podResource), cluster)
	lw := &cache.ListWatch{ListWithContextFunc: requesting.list, WatchFuncWithContext: requesting.watch}
	return cache.NewSharedIndexInformerWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, client), &metav1.PartialObjectMetadata{},
		cache.SharedIndexInformerOptions{
			ResyncPeriod:      resync,
			Indexers:          podIndexers,
			ObjectDescription: "Pods that request a machine",
		})
}

var podIndexers = cache.Indexers{
	byUID: func(obj any) ([]string, error) {
		if pod, ok := obj.(*metav1.PartialObjectMetadata); ok {
			return []string{string(pod.UID)}, nil
		}
		return nil, nil
	},
	byGroup: func(obj any) ([]string, error) {
		if pod, ok := obj.(*metav1.PartialObjectMetadata); ok {
			return []string{pod.Annotations[v1beta1.AnnotationOnDemandGroup]}, nil
		}
		return nil, nil
	},
}

// requestsMachine reports whether a Pod requests a machine of a cluster.
func requestsMachine(pod *metav1.PartialObjectMetadata, cluster string) bool {
	_, requested := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	named, ok := pod.Annotations[v1beta1.AnnotationOnDemandCluster]
	return requested && (!ok || named == cluster)
}

// essentials returns what the cache keeps of a Pod. It shares no memory with pod, and
// has the kind that events need.
func essentials(pod *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	kept := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp,
		},
	}
	for _, name := range []string{v1beta1.AnnotationOnDemandGroup, v1beta1.AnnotationOnDemandInstanceType, v1beta1.AnnotationOnDemandDrainTimeout} {
		if value, ok := pod.Annotations[name]; ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, name, value)
		}
	}
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && excluded(controller) {
		kept.OwnerReferences = []metav1.OwnerReference{*controller.DeepCopy()}
	}
	return kept
}
