// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

// Annotations by which the cluster autoscaler is told of labels and taints of a
// Node that there is not yet. A MachinePool has no other way.
const (
	annotationLabels = "capacity.cluster-autoscaler.kubernetes.io/labels"
	annotationTaints = "capacity.cluster-autoscaler.kubernetes.io/taints"
)

// annotate tells the cluster autoscaler on the MachinePool which labels and taints
// its Nodes will have. Of an annotation that somebody else has set, his value
// stays, and is no error. While no shard tells, shape is nil, and what was told
// stays.
func (c *Controller) annotate(ctx context.Context, machinePool *clusterv1.MachinePool, shape *shard.NodeShape) error {
	if shape == nil {
		return nil
	}
	wanted := nodeAnnotations(shape)
	for {
		ours := c.annotations.ours(machinePool, wanted)
		if !slices.ContainsFunc(ours, func(key string) bool { return machinePool.Annotations[key] != wanted[key] }) {
			return nil
		}
		// All of ours at once: an apply takes away what it leaves out.
		applied := make(map[string]string, len(ours))
		for _, key := range ours {
			if wanted[key] != "" {
				applied[key] = wanted[key]
			}
		}
		written, err := c.capi.ApplyMachinePoolAnnotations(ctx, machinePool, applied, metav1.ApplyOptions{FieldManager: controller.FieldManager})
		if foreign := conflicting(err, applied); len(foreign) > 0 {
			klog.FromContext(ctx).V(2).Info("MachinePool has annotations of somebody else", "annotations", foreign)
			c.annotations.leave(machinePool, wanted, foreign)
			continue
		}
		if err != nil {
			return fmt.Errorf("annotate MachinePool %s: %w", klog.KObj(machinePool), err)
		}
		klog.FromContext(ctx).Info("MachinePool annotated for the cluster autoscaler", "annotations", applied)
		c.machinePoolWrites.Wrote(written)
		c.annotations.take(machinePool, ours)
		// One that is no longer needed and that is still there was never ours.
		c.annotations.leave(machinePool, wanted, slices.DeleteFunc(ours, func(key string) bool {
			return wanted[key] != "" || written.Annotations[key] == ""
		}))
		return nil
	}
}

// nodeAnnotations are the annotations that tell of labels and taints, "" for one
// that is not needed.
func nodeAnnotations(shape *shard.NodeShape) map[string]string {
	var labels, taints []string
	for _, key := range slices.Sorted(maps.Keys(shape.Labels)) {
		labels = append(labels, key+"="+shape.Labels[key])
	}
	for _, taint := range shape.Taints {
		taints = append(taints, taint.Key+"="+taint.Value+":"+taint.Effect)
	}
	return map[string]string{annotationLabels: strings.Join(labels, ","), annotationTaints: strings.Join(taints, ",")}
}

// conflicting are those of the annotations that somebody else has set, as err
// says.
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

// annotationOwners remembers which annotations of MachinePools are somebody
// else's. The API server knows, and would have to be asked in every sync. The zero
// value is ready for use.
type annotationOwners struct {
	mu sync.Mutex
	// foreign are by name, so that there are never more than MachinePools had names.
	foreign map[annotationName]refused
}

// annotationName is an annotation of a MachinePool.
type annotationName struct {
	machinePool cache.ObjectName
	key         string
}

// refused is what was wanted of an annotation and could not be, and what the
// cache showed then. When either changes it is time to ask again.
type refused struct{ wanted, shown string }

// ours are the keys of wanted, sorted, that are not known to be somebody else's.
func (a *annotationOwners) ours(machinePool *clusterv1.MachinePool, wanted map[string]string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(wanted)), func(key string) bool {
		left, ok := a.foreign[annotationName{cache.MetaObjectToName(machinePool), key}]
		return ok && left == refused{wanted[key], machinePool.Annotations[key]}
	})
}

// leave has annotations be somebody else's.
func (a *annotationOwners) leave(machinePool *clusterv1.MachinePool, wanted map[string]string, keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.foreign == nil {
		a.foreign = make(map[annotationName]refused)
	}
	for _, key := range keys {
		a.foreign[annotationName{cache.MetaObjectToName(machinePool), key}] = refused{wanted[key], machinePool.Annotations[key]}
	}
}

// take has annotations be ours.
func (a *annotationOwners) take(machinePool *clusterv1.MachinePool, keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range keys {
		delete(a.foreign, annotationName{cache.MetaObjectToName(machinePool), key})
	}
}
