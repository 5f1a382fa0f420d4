// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nodeannotations tells the cluster autoscaler which labels and taints the Nodes of a
// MachinePool will have, and how many Pods they run, so that it can scale from zero.
package nodeannotations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// The cluster autoscaler reads the labels, the taints and the maximum number of Pods of Nodes that do not
// exist yet from these annotations. A MachinePool has no other field for them
// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/clusterapi/README.md).
const (
	annotationLabels  = "capacity.cluster-autoscaler.kubernetes.io/labels"
	annotationTaints  = "capacity.cluster-autoscaler.kubernetes.io/taints"
	annotationMaxPods = "capacity.cluster-autoscaler.kubernetes.io/maxPods"
)

// Annotator annotates MachinePools, and remembers which annotations other clients own.
type Annotator struct {
	CAPI *capi.Client
	// Writes records each MachinePool that was written.
	Writes *controller.WriteTracker

	foreign foreignAnnotations
}

// Annotate writes the labels and taints of future Nodes to a MachinePool, and the maximum number of Pods
// that its pool has set, 0 without. An annotation that
// another client set keeps its value; that is no error. A nil shape is not known, and changes
// nothing.
func (a *Annotator) Annotate(ctx context.Context, machinePool *clusterv1.MachinePool, shape *shard.NodeShape, maxPods int32) error {
	if shape == nil {
		return nil
	}
	wanted := nodeAnnotations(shape, maxPods)
	for {
		ours := a.foreign.ours(machinePool, wanted)
		if !slices.ContainsFunc(ours, func(key string) bool { return machinePool.Annotations[key] != wanted[key] }) {
			return nil
		}
		// All of ours together: an apply removes the fields that it omits
		// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
		applied := make(map[string]string, len(ours))
		for _, key := range ours {
			if wanted[key] != "" {
				applied[key] = wanted[key]
			}
		}
		written, err := a.CAPI.ApplyMachinePoolAnnotations(ctx, machinePool, applied, metav1.ApplyOptions{FieldManager: controllers.FieldManager})
		if foreign := conflicting(err, applied); len(foreign) > 0 {
			klog.FromContext(ctx).V(2).Info("MachinePool has annotations of other clients", "annotations", foreign)
			a.foreign.add(machinePool, wanted, foreign)
			continue
		}
		if err != nil {
			return fmt.Errorf("annotate MachinePool %s: %w", klog.KObj(machinePool), err)
		}
		klog.FromContext(ctx).Info("Annotated the MachinePool for the cluster autoscaler", "annotations", applied)
		a.Writes.Record(written)
		a.foreign.remove(machinePool, ours)
		// An annotation that is no longer needed and still exists was never ours.
		a.foreign.add(machinePool, wanted, slices.DeleteFunc(ours, func(key string) bool {
			return wanted[key] != "" || written.Annotations[key] == ""
		}))
		return nil
	}
}

// nodeAnnotations returns the annotations for labels, taints and the maximum number of Pods, "" for an
// annotation that is not needed. The shape may have another maximum, which is a guess.
func nodeAnnotations(shape *shard.NodeShape, maxPods int32) map[string]string {
	var labels, taints []string
	for _, label := range shape.Labels {
		labels = append(labels, label.Key+"="+label.Value)
	}
	for _, taint := range shape.Taints {
		taints = append(taints, taint.Key+"="+taint.Value+":"+taint.Effect)
	}
	var pods string
	if maxPods > 0 {
		pods = strconv.FormatInt(int64(maxPods), 10)
	}
	return map[string]string{annotationLabels: strings.Join(labels, ","), annotationTaints: strings.Join(taints, ","), annotationMaxPods: pods}
}

// conflicting returns the keys of annotations that other clients set, according to
// err.
func conflicting(err error, annotations map[string]string) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var keys []string
	for _, cause := range status.Status().Details.Causes {
		key := strings.TrimPrefix(cause.Field, ".metadata.annotations.")
		if _, ok := annotations[key]; ok && cause.Type == metav1.CauseTypeFieldManagerConflict {
			keys = append(keys, key)
		}
	}
	return keys
}

// foreignAnnotations records which annotations of MachinePools other clients own.
// Otherwise every sync would send an apply to find out. The zero value is empty.
type foreignAnnotations struct {
	mu sync.Mutex
	// conflicts are by name, which bounds them by the names of MachinePools.
	conflicts map[annotationKey]conflict
}

// annotationKey is an annotation of a MachinePool.
type annotationKey struct {
	machinePool cache.ObjectName
	key         string
}

// conflict is the value that could not be written, and the value in the cache at that
// time. If either changes, the annotation is tried again.
type conflict struct{ wanted, cached string }

// ours returns the keys of wanted, sorted, without keys that other clients own.
func (a *foreignAnnotations) ours(machinePool *clusterv1.MachinePool, wanted map[string]string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(wanted)), func(key string) bool {
		recorded, ok := a.conflicts[annotationKey{cache.MetaObjectToName(machinePool), key}]
		return ok && recorded == conflict{wanted[key], machinePool.Annotations[key]}
	})
}

// add records annotations of other clients.
func (a *foreignAnnotations) add(machinePool *clusterv1.MachinePool, wanted map[string]string, keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conflicts == nil {
		a.conflicts = make(map[annotationKey]conflict)
	}
	for _, key := range keys {
		a.conflicts[annotationKey{cache.MetaObjectToName(machinePool), key}] = conflict{wanted[key], machinePool.Annotations[key]}
	}
}

// remove records that annotations are ours.
func (a *foreignAnnotations) remove(machinePool *clusterv1.MachinePool, keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range keys {
		delete(a.conflicts, annotationKey{cache.MetaObjectToName(machinePool), key})
	}
}
