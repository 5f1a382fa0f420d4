// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// validatePool judges a pool that is created (no before) or changed. What the
// pool had before is not held against it: it must stay possible to edit a pool
// of which a shard was taken out of the configuration.
//
// What a static pool may not change is a rule of the kind itself.
func (v *Validator) validatePool(before, after *v1beta1.NstanceMachinePool) error {
	var wrong field.ErrorList
	if before == nil {
		wrong = append(wrong, v.validateGroup(after)...)
		before = &v1beta1.NstanceMachinePool{}
	}
	wrong = append(wrong, v.validateShards(before.Spec.Shards, after.Spec.Shards)...)
	if len(wrong) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind).GroupKind(), after.Name, wrong)
}

// validateGroup refuses the group of another pool: two would fight over its size.
func (v *Validator) validateGroup(pool *v1beta1.NstanceMachinePool) field.ErrorList {
	var others []string
	for _, other := range v.poolsOf(pool.Spec.Group) {
		if other.Name != pool.Name {
			others = append(others, other.Name)
		}
	}
	if len(others) == 0 {
		return nil
	}
	slices.Sort(others)
	return field.ErrorList{field.Invalid(field.NewPath("spec", "group"), pool.Spec.Group,
		fmt.Sprintf("the group belongs to pool %s in this namespace", strings.Join(others, ", ")))}
}

// validateShards refuses shards that are added and not configured. Without the
// ConfigMap nothing is known about shards, and nothing refused.
func (v *Validator) validateShards(before, after []v1beta1.Identifier) field.ErrorList {
	configured, known := v.configuredShards()
	if !known {
		return nil
	}
	var wrong field.ErrorList
	for i, id := range after {
		if slices.Contains(before, id) || slices.Contains(configured, string(id)) {
			continue
		}
		wrong = append(wrong, field.Invalid(field.NewPath("spec", "shards").Index(i), id,
			fmt.Sprintf("the shard is not configured; ConfigMap %s has: %s",
				v.config.ShardsConfigMap, orNone(strings.Join(configured, ", ")))))
	}
	return wrong
}

// configuredShards are the ids that the ConfigMap has an endpoint for, be it
// readable or not, in their order.
func (v *Validator) configuredShards() (ids []string, known bool) {
	obj, exists, err := v.shards.GetByKey(cache.NewObjectName(v.config.Namespace, v.config.ShardsConfigMap).String())
	if err != nil || !exists {
		return nil, false
	}
	configMap, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return nil, false
	}
	return shard.Configured(configMap.Data), true
}

// validatePoolDeletion refuses to delete a static pool. Its group would stay, and
// with it an import that brings the pool back.
func (v *Validator) validatePoolDeletion(pool *v1beta1.NstanceMachinePool) error {
	if !isStatic(pool) || v.clusterGoes() {
		return nil
	}
	for _, machinePool := range v.machinePoolsOf(pool.Name) {
		// Cluster API deletes the pool of a MachinePool and waits until it is gone.
		if machinePool.DeletionTimestamp != nil {
			return nil
		}
	}
	return forbid("%s %q cannot be deleted: %s", v1beta1.PoolKind, pool.Name, staticReason(pool))
}

func isStatic(pool *v1beta1.NstanceMachinePool) bool {
	return ptr.Deref(pool.Status.IsStatic, false)
}

// staticReason says why something of a static pool stays, and what to do.
func staticReason(pool *v1beta1.NstanceMachinePool) string {
	return fmt.Sprintf("group %q is static, it is in the configuration of its shard servers; "+
		"remove it from there first, or scale the MachinePool to 0", pool.Spec.Group)
}

func orNone(list string) string {
	if list == "" {
		return "none"
	}
	return list
}
