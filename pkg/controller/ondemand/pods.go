// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// byUID and byGroup are the indexes of Pods by their UIDs, and by the groups that
// they name.
const (
	byUID   = "uid"
	byGroup = "group"
)

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// unfinished selects the Pods that have not run to their end. A Pod that finishes
// leaves such a list, and such a watch, like one that is deleted.
var unfinished = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// NewPodInformer watches the Pods of all namespaces that ask for a machine and
// have not finished; resync is the period after which handlers see every object
// again, 0 for never. Its cache holds *metav1.PartialObjectMetadata with little
// more than name and UID. Other Pods are dropped as they arrive, so that their
// number costs no memory.
func NewPodInformer(client metadata.Interface, resync time.Duration) cache.SharedIndexInformer {
	asking := newAskingPods(client.Resource(podResource))
	lw := &cache.ListWatch{ListWithContextFunc: asking.list, WatchFuncWithContext: asking.watch}
	return cache.NewSharedIndexInformerWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, client), &metav1.PartialObjectMetadata{},
		cache.SharedIndexInformerOptions{
			ResyncPeriod:      resync,
			Indexers:          podIndexers,
			ObjectDescription: "Pods that ask for a machine",
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

// asks tells whether a Pod asks for a machine of its own.
func asks(pod *metav1.PartialObjectMetadata) bool {
	_, ok := pod.Annotations[v1beta1.AnnotationOnDemandGroup]
	return ok
}

// essentials is what is kept of a Pod. It shares nothing with what it was read
// from, and its kind is the one that events are to name.
func essentials(pod *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	kept := &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp,
		},
	}
	for _, name := range []string{v1beta1.AnnotationOnDemandGroup, v1beta1.AnnotationOnDemandInstanceType} {
		if value, ok := pod.Annotations[name]; ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, name, value)
		}
	}
	return kept
}

// lives asks the API server whether a Pod is still there and has not finished. A
// Pod of that name with another UID is another Pod.
func (c *Controller) lives(ctx context.Context, namespace, name string, uid types.UID) (bool, error) {
	selector := fields.AndSelectors(fields.OneTermEqualSelector(metav1.ObjectNameField, name), unfinished)
	pods, err := c.podClient.Resource(podResource).Namespace(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return false, fmt.Errorf("look for Pod %s/%s: %w", namespace, name, err)
	}
	for i := range pods.Items {
		if pods.Items[i].UID == uid {
			return true, nil
		}
	}
	return false, nil
}
