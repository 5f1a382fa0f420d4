// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/identifier/identifiertest"
)

// Bad input is refused with a message that names the field and the rule.
func TestBadPoolsAreRefused(t *testing.T) {
	pools := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace)
	for name, c := range map[string]struct {
		change func(*v1beta1.NstanceMachinePool)
		field  string
		rule   string
	}{
		"no shards":           {func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = []v1beta1.Identifier{} }, "spec.shards", "at least 1 item"},
		"a shard twice":       {func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = []v1beta1.Identifier{"a", "b", "a"} }, "spec.shards", "must not contain a shard twice"},
		"a shard in capitals": {func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = []v1beta1.Identifier{"A"} }, "spec.shards[0]", "should match"},
		"group with hyphens":  {func(p *v1beta1.NstanceMachinePool) { p.Spec.Group = "a--b" }, "spec.group", "must not contain consecutive hyphens"},
		"no group":            {func(p *v1beta1.NstanceMachinePool) { p.Spec.Group = "" }, "spec.group", "at least 1 char"},
		"long group":          {func(p *v1beta1.NstanceMachinePool) { p.Spec.Group = v1beta1.Identifier(strings.Repeat("a", 33)) }, "spec.group", "32"},
		"a bad subnet":        {func(p *v1beta1.NstanceMachinePool) { p.Spec.Subnets = []v1beta1.Identifier{"sub_net"} }, "spec.subnets[0]", "should match"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("refused", shardIDs...)
			c.change(pool)
			_, err := pools.Create(t.Context(), pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			refused(t, err, c.field, c.rule)
		})
	}

	t.Run("another group", func(t *testing.T) {
		pool, err := pools.Create(t.Context(), newPool("immutable", shardIDs...), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := pools.Delete(context.WithoutCancel(t.Context()), pool.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			untilNothingIsLeft(t, pool.Name)
		})
		_, err = pools.Patch(t.Context(), pool.Name, types.MergePatchType, []byte(`{"spec":{"group":"other"}}`), metav1.PatchOptions{})
		refused(t, err, "spec.group", "immutable")
	})
}

func TestBadShardGroupsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		object      *v1beta1.NstanceShardGroup
		field, rule string
	}{
		"negative size": {newShardGroup("a--b", "a", "b", -1), "spec.size", "greater than or equal to 0"},
		"another name":  {newShardGroup("a--c", "a", "b", 1), "metadata.name", "{spec.group}--{spec.shard}"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).
				Create(t.Context(), c.object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			refused(t, err, c.field, c.rule)
		})
	}
}

// The CRDs and the code have one rule for identifiers.
func TestIdentifiersInCRD(t *testing.T) {
	for _, c := range identifiertest.Cases {
		pool := newPool("identifier", shardIDs...)
		pool.Spec.Subnets = []v1beta1.Identifier{v1beta1.Identifier(c.Value)}
		_, err := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
			Create(t.Context(), pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if c.Valid && err != nil {
			t.Errorf("subnet %q: %v, want it accepted", c.Value, err)
		}
		if !c.Valid && !apierrors.IsInvalid(err) {
			t.Errorf("subnet %q: %v, want it refused", c.Value, err)
		}
	}
}

func refused(t *testing.T, err error, field, rule string) {
	t.Helper()
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got error %v, want the object to be invalid", err)
	}
	if !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), rule) {
		t.Errorf("%q does not name the field %q and the rule %q", err, field, rule)
	}
}

func newShardGroup(name, group, shard string, size int32) *v1beta1.NstanceShardGroup {
	return &v1beta1.NstanceShardGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: nstance.Namespace},
		Spec: v1beta1.NstanceShardGroupSpec{
			Group: v1beta1.Identifier(group), Shard: v1beta1.Identifier(shard), Size: size,
		},
	}
}

// A pool of which a shard is taken out of the configuration says so, once, and
// then waits.
func TestUnknownShard(t *testing.T) {
	const name = "lost"
	pools := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace)
	configureShard(t, "us-west-9z", "127.0.0.1:1")
	// The webhook refuses it until the operator has seen the shard.
	eventually(t, time.Minute, "the pool is made", func(ctx context.Context) error {
		_, err := pools.Create(ctx, newPool(name, "us-west-2a", "us-west-9z"), metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		if err := pools.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	eventually(t, time.Minute, "the pool waits for the shard", func(ctx context.Context) error {
		pool, err := getPool(ctx, name)
		if err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionReady); ready == nil || ready.Reason != v1beta1.ReasonNotSynced {
			return fmt.Errorf("condition Ready is %+v", ready)
		}
		return nil
	})
	from := auditEnd(t)
	removeShard(t, "us-west-9z")
	eventually(t, time.Minute, "the pool names the shard", func(ctx context.Context) error {
		pool, err := getPool(ctx, name)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1beta1.ReasonUnknownShard {
			return fmt.Errorf("condition Ready is %+v", ready)
		}
		if !strings.Contains(ready.Message, "us-west-9z") {
			return fmt.Errorf("message %q does not name the shard", ready.Message)
		}
		return nil
	})
	eventually(t, time.Minute, "there is an event", func(ctx context.Context) error {
		count, err := eventsOn(ctx, name, v1beta1.ReasonUnknownShard)
		if err == nil && count == 0 {
			err = errors.New("no event")
		}
		return err
	})

	// A resync looks at the pool again and finds nothing to say.
	start, err := metric(t.Context(), env.operator.URL(), "workqueue_adds_total", map[string]string{"name": "machinepool"})
	if err != nil {
		t.Fatal(err)
	}
	const syncs = 3
	eventually(t, 5*time.Minute, "resyncs have passed", func(ctx context.Context) error {
		now, err := metric(ctx, env.operator.URL(), "workqueue_adds_total", map[string]string{"name": "machinepool"})
		if err == nil && now-start < syncs {
			err = fmt.Errorf("%v of %d", now-start, syncs)
		}
		return err
	})
	writes := operatorWrites(t, from, func(w controlplane.Write) bool {
		return strings.HasPrefix(w.Name, name) &&
			(w.Resource == "nstancemachinepools" || w.Resource == "nstanceshardgroups" || w.Resource == "machinepools")
	})
	if len(writes) != 1 {
		t.Errorf("%d writes, want the status alone:%s", len(writes), describe(writes))
	}
	count, err := eventsOn(t.Context(), name, v1beta1.ReasonUnknownShard)
	if err != nil || count != 1 {
		t.Errorf("%d events, error %v, want 1 event", count, err)
	}
	if retries, err := metric(t.Context(), env.operator.URL(), "workqueue_depth", map[string]string{"name": "machinepool"}); err != nil || retries > 0 {
		t.Errorf("queue has %v keys, error %v, want an idle queue", retries, err)
	}
}

// eventsOn counts the events for an object, repetitions included.
func eventsOn(ctx context.Context, name, reason string) (int, error) {
	list, err := env.kube.EventsV1().Events(nstance.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "regarding.name=" + name + ",reason=" + reason,
	})
	if err != nil {
		return 0, err
	}
	count := 0
	for _, event := range list.Items {
		count++
		if event.Series != nil {
			count += int(event.Series.Count)
		}
	}
	return count, nil
}
