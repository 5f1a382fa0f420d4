// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

const (
	// replicasSetting is the one setting that the MachinePool has.
	replicasSetting = "replicas"
	// writerTimeout is how long the line of the audit trail may wait for the writer.
	writerTimeout = 2 * time.Second
)

// Writer returns who wrote settings of the pool of a shard group last, for the audit trail:
// the object, the field, the field manager and the time. It returns "" if that is not known.
func (c *Controller) Writer(ctx context.Context, group *v1beta1.NstanceShardGroup, settings ...string) string {
	ctx, cancel := context.WithTimeout(ctx, writerTimeout)
	defer cancel()
	name := poolOf(group)
	if len(settings) == 1 && settings[0] == replicasSetting {
		return c.replicasWriter(ctx, name)
	}
	pool, err := c.readWriters(ctx, name)
	switch {
	case err != nil:
		return ""
	case pool.UID == "" || !pool.DeletionTimestamp.IsZero():
		return fmt.Sprintf("%s %s is deleted", v1beta1.PoolKind, name)
	default:
		return lastWriter(v1beta1.PoolKind+" "+name, pool.ManagedFields, settings...)
	}
}

// replicasWriter returns who wrote the replicas of the MachinePool of a pool last.
func (c *Controller) replicasWriter(ctx context.Context, pool string) string {
	machinePool, err := c.readReplicasWriters(ctx, pool)
	if err != nil {
		return ""
	}
	return lastWriter("MachinePool "+machinePool.Name, machinePool.ManagedFields, replicasSetting)
}

// lastWriter returns the last entry of managedFields that owns a setting of the spec. The
// time of an entry is that of the last write of any of its fields.
func lastWriter(object string, entries []metav1.ManagedFieldsEntry, settings ...string) string {
	var last *metav1.ManagedFieldsEntry
	var setting string
	for i := range entries {
		entry := &entries[i]
		owned := ownedSetting(entry, settings)
		if owned == "" || last != nil && !last.Time.Before(entry.Time) {
			continue
		}
		last, setting = entry, owned
	}
	if last == nil {
		return ""
	}
	writer := fmt.Sprintf("%s, spec.%s: %s", object, setting, last.Manager)
	if last.Subresource != "" {
		writer += " through " + last.Subresource
	}
	if last.Time != nil {
		writer += " at " + last.Time.UTC().Format(time.RFC3339)
	}
	return writer
}

// ownedSetting returns the first of settings that an entry owns, "" if it owns none.
func ownedSetting(entry *metav1.ManagedFieldsEntry, settings []string) string {
	if entry.FieldsV1 == nil {
		return ""
	}
	var owned struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if err := json.NewDecoder(entry.FieldsV1.GetRawReader()).Decode(&owned); err != nil {
		return ""
	}
	for _, setting := range settings {
		if _, found := owned.Spec["f:"+setting]; found {
			return setting
		}
	}
	return ""
}
