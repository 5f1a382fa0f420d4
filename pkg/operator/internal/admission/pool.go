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
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/operator/shard"
)

// validatePool validates a pool that is created (before is nil) or changed. Values
// that the pool had before are allowed: it must be possible to edit a pool after
// one of its shards was removed from the configuration.
//
// The CRD has the rules for changes of static pools.
func (v *Validator) validatePool(before, after *v1beta1.NstanceMachinePool) error {
	var problems field.ErrorList
	if before == nil {
		problems = append(problems, v.validateGroup(after)...)
		problems = append(problems, v.validateStatic(after)...)
		before = &v1beta1.NstanceMachinePool{}
	}
	problems = append(problems, v.validateShards(before.Spec.Shards, after.Spec.Shards)...)
	if len(problems) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1beta1.SchemeGroupVersion.WithKind(v1beta1.PoolKind).GroupKind(), after.Name, problems)
}

// warnings returns what is allowed in a pool and has not the effect that the user expects. The CRD can
// check the form of a schedule, and neither its times nor its time zone.
func warnings(pool *v1beta1.NstanceMachinePool) []string {
	if pool.Spec.Rotation == nil {
		return nil
	}
	blocked := poolplan.RotationPolicy(pool.Spec.Rotation, v1beta1.MaxReplicas).Blocked
	if blocked == nil {
		return nil
	}
	return []string{blocked.Message + "; no outdated instance is replaced"}
}

// validateGroup rejects the group of another pool, since both would set its size.
func (v *Validator) validateGroup(pool *v1beta1.NstanceMachinePool) field.ErrorList {
	var others []string
	for _, other := range v.poolIndex.OfGroup(string(pool.Spec.Group)) {
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

// validateStatic rejects a template or subnets of a new pool that differ from the servers'
// configuration, if the group is in it. The servers would ignore them until the group is
// removed from the configuration, and would then replace its instances.
func (v *Validator) validateStatic(pool *v1beta1.NstanceMachinePool) field.ErrorList {
	var subnets []string
	for _, id := range pool.Spec.Subnets {
		subnets = append(subnets, string(id))
	}
	var template, subnet *field.Error
	spec := field.NewPath("spec")
	for _, id := range pool.Spec.Shards {
		group, ok := v.groups.Get(string(id), string(pool.Spec.Group))
		if !ok || !group.Static {
			continue
		}
		reason := func(value string) string {
			return fmt.Sprintf("group %q is static, and the configuration of shard %s sets %s; leave it out", pool.Spec.Group, id, value)
		}
		if template == nil && pool.Spec.Template != "" && pool.Spec.Template != group.Template {
			template = field.Invalid(spec.Child("template"), pool.Spec.Template, reason(fmt.Sprintf("%q", group.Template)))
		}
		if subnet == nil && len(subnets) > 0 && !slices.Equal(subnets, group.Subnets) {
			subnet = field.Invalid(spec.Child("subnets"), subnets, reason(orNone(strings.Join(group.Subnets, ", "))))
		}
	}
	var problems field.ErrorList
	for _, problem := range []*field.Error{template, subnet} {
		if problem != nil {
			problems = append(problems, problem)
		}
	}
	return problems
}

// validateShards rejects added shards that are not configured. If the ConfigMap does not
// exist, every shard is allowed.
func (v *Validator) validateShards(before, after []v1beta1.Identifier) field.ErrorList {
	configured, known := v.configuredShards()
	if !known {
		return nil
	}
	var problems field.ErrorList
	for i, id := range after {
		if slices.Contains(before, id) || slices.Contains(configured, string(id)) {
			continue
		}
		problems = append(problems, field.Invalid(field.NewPath("spec", "shards").Index(i), id,
			fmt.Sprintf("the shard is not configured; ConfigMap %s has: %s",
				v.config.ShardsConfigMap, orNone(strings.Join(configured, ", ")))))
	}
	return problems
}

// configuredShards returns the sorted ids of the shards that the ConfigMap names, including
// shards whose endpoint is invalid.
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

// validatePoolDeletion rejects the deletion of a static pool: its group would stay,
// and the import would create the pool again.
func (v *Validator) validatePoolDeletion(pool *v1beta1.NstanceMachinePool) error {
	if !isStatic(pool) || v.clusterIsDeleted() {
		return nil
	}
	for _, machinePool := range v.machinePoolsOf(pool.Name) {
		// Cluster API deletes the pool of a MachinePool and waits for the deletion.
		if machinePool.DeletionTimestamp != nil {
			return nil
		}
	}
	return forbid("%s %q cannot be deleted: %s", v1beta1.PoolKind, pool.Name, staticReason(pool))
}

func isStatic(pool *v1beta1.NstanceMachinePool) bool {
	return ptr.Deref(pool.Status.IsStatic, false)
}

// staticReason returns why an object of a static pool cannot be deleted, and what
// to do instead.
func staticReason(pool *v1beta1.NstanceMachinePool) string {
	return fmt.Sprintf("group %q is static, it is in the configuration of its shard servers; "+
		"remove it from there first, or set its limits.min_size to 0 there and scale the MachinePool to 0", pool.Spec.Group)
}

func orNone(list string) string {
	if list == "" {
		return "none"
	}
	return list
}
