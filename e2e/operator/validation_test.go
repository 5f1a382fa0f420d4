// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier/identifiertest"
)

// Invalid pools are rejected with a message that names the field and the rule.
func TestInvalidPoolsAreRejected(t *testing.T) {
	t.Parallel()
	pools := env.NstanceMachinePools()
	for name, c := range map[string]struct {
		change func(*v1beta1.NstanceMachinePool)
		field  string
		rule   string
	}{
		"no shards":           {func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = nil }, "spec.shards", "Required value"},
		"a shard twice":       {func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = []v1beta1.Identifier{"a", "b", "a"} }, "spec.shards", "must not contain a shard twice"},
		"a shard in capitals": {func(p *v1beta1.NstanceMachinePool) { p.Spec.Shards = []v1beta1.Identifier{"A"} }, "spec.shards[0]", "should match"},
		"group with hyphens":  {func(p *v1beta1.NstanceMachinePool) { p.Spec.Group = "a--b" }, "spec.group", "must not contain consecutive hyphens"},
		"no group":            {func(p *v1beta1.NstanceMachinePool) { p.Spec.Group = "" }, "spec.group", "Required value"},
		"long group":          {func(p *v1beta1.NstanceMachinePool) { p.Spec.Group = v1beta1.Identifier(strings.Repeat("a", 33)) }, "spec.group", "32"},
		"no instance at once": {func(p *v1beta1.NstanceMachinePool) { p.Spec.ScaleDown = upTo(intstr.FromInt32(0)) }, "spec.scaleDown.maxInFlight", "must be a number from 1 on"},
		"no part at once":     {func(p *v1beta1.NstanceMachinePool) { p.Spec.ScaleDown = upTo(intstr.FromString("0%")) }, "spec.scaleDown.maxInFlight", "must be a number from 1 on"},
		"no percentage":       {func(p *v1beta1.NstanceMachinePool) { p.Spec.ScaleDown = upTo(intstr.FromString("half")) }, "spec.scaleDown.maxInFlight", "must be a number from 1 on"},
		"an unknown pause": {func(p *v1beta1.NstanceMachinePool) {
			p.Spec.ScaleDown = &v1beta1.ScaleDownGuards{PauseWhile: []v1beta1.PoolState{"Night"}}
		}, "spec.scaleDown.pauseWhile[0]", "Unsupported value"},
		"a negative time": {func(p *v1beta1.NstanceMachinePool) {
			p.Spec.ScaleDown = &v1beta1.ScaleDownGuards{MinReadySeconds: ptr.To[int32](-1)}
		}, "spec.scaleDown.minReadySeconds", "greater than or equal to 0"},
		"an unknown policy":                  {func(p *v1beta1.NstanceMachinePool) { p.Spec.DeletionPolicy = "Orphan" }, "spec.deletionPolicy", "Unsupported value"},
		"no time of a shortfall":             {shortfall(v1beta1.ShortfallSettings{AfterSeconds: -1}), "spec.shortfall.afterSeconds", "greater than or equal to 1"},
		"more than a day of a shortfall":     {shortfall(v1beta1.ShortfallSettings{AfterSeconds: 86401}), "spec.shortfall.afterSeconds", "less than or equal to 86400"},
		"an unknown reaction to a shortfall": {shortfall(v1beta1.ShortfallSettings{Policy: "Ignore"}), "spec.shortfall.policy", "Unsupported value"},
		"no setting of a shortfall":          {shortfall(v1beta1.ShortfallSettings{}), "spec.shortfall", "at least 1 properties"},
		"an unknown mode":                    {func(p *v1beta1.NstanceMachinePool) { p.Spec.MachineMode = "Sometimes" }, "spec.machineMode", "Unsupported value"},
		"guards without a guard":             {func(p *v1beta1.NstanceMachinePool) { p.Spec.ScaleDown = &v1beta1.ScaleDownGuards{} }, "spec.scaleDown", "at least 1 properties"},
		"a subnet twice":                     {func(p *v1beta1.NstanceMachinePool) { p.Spec.Subnets = []v1beta1.Identifier{"x", "x"} }, "spec.subnets", "must not contain a subnet pool twice"},
		"a blank template":                   {func(p *v1beta1.NstanceMachinePool) { p.Spec.Template = " " }, "spec.template", "should match"},
		"a long template":                    {func(p *v1beta1.NstanceMachinePool) { p.Spec.Template = strings.Repeat("t", 64) }, "spec.template", "63"},
		"a sentence as an instance type":     {func(p *v1beta1.NstanceMachinePool) { p.Spec.InstanceType = "Not A Key!" }, "spec.instanceType", "should match"},
		"too many vars":                      {func(p *v1beta1.NstanceMachinePool) { p.Spec.Vars = vars(65) }, "spec.vars", "at most 64"},
		"a long var":                         {func(p *v1beta1.NstanceMachinePool) { p.Spec.Vars = map[string]string{"v": strings.Repeat("x", 4097)} }, "spec.vars", "a value at most 4096"},
		"a long name of a var":               {func(p *v1beta1.NstanceMachinePool) { p.Spec.Vars = map[string]string{strings.Repeat("n", 257): "x"} }, "spec.vars", "1 to 256 characters"},
		"a var without a name":               {func(p *v1beta1.NstanceMachinePool) { p.Spec.Vars = map[string]string{"": "x"} }, "spec.vars", "1 to 256 characters"},
		"a bad subnet":                       {func(p *v1beta1.NstanceMachinePool) { p.Spec.Subnets = []v1beta1.Identifier{"sub_net"} }, "spec.subnets[0]", "should match"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := testcluster.NewNstanceMachinePool("rejected", shardIDs...)
			c.change(pool)
			_, err := pools.Create(t.Context(), pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			expectRejected(t, err, c.field, c.rule)
		})
	}

	for _, value := range []intstr.IntOrString{intstr.FromInt32(1), intstr.FromInt32(10000), intstr.FromString("1%"), intstr.FromString("100%")} {
		pool := testcluster.NewNstanceMachinePool("accepted", shardIDs...)
		pool.Spec.ScaleDown = upTo(value)
		_, err := pools.Create(t.Context(), pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(t, err, value.String())
	}

	t.Run("another group", func(t *testing.T) {
		pool, err := pools.Create(t.Context(), testcluster.NewNstanceMachinePool("immutable", shardIDs...), metav1.CreateOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			if err := pools.Delete(context.WithoutCancel(t.Context()), pool.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			untilNothingIsLeft(t, pool.Name)
		})
		_, err = pools.Patch(t.Context(), pool.Name, types.MergePatchType, []byte(`{"spec":{"group":"other"}}`), metav1.PatchOptions{})
		expectRejected(t, err, "spec.group", "immutable")
	})
}

func shortfall(settings v1beta1.ShortfallSettings) func(*v1beta1.NstanceMachinePool) {
	return func(p *v1beta1.NstanceMachinePool) { p.Spec.Shortfall = &settings }
}

func vars(count int) map[string]string {
	made := map[string]string{}
	for i := range count {
		made[fmt.Sprintf("v%d", i)] = "x"
	}
	return made
}

func upTo(n intstr.IntOrString) *v1beta1.ScaleDownGuards {
	return &v1beta1.ScaleDownGuards{MaxInFlight: &n}
}

func TestInvalidShardGroupsAreRejected(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		object      *v1beta1.NstanceShardGroup
		field, rule string
	}{
		"negative size": {object: newShardGroup("a--b", "a", "b", -1), field: "spec.size", rule: "greater than or equal to 0"},
		"another name":  {object: newShardGroup("a--c", "a", "b", 1), field: "metadata.name", rule: "{spec.group}--{spec.shard}"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := env.NstanceShardGroups().
				Create(t.Context(), c.object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			expectRejected(t, err, c.field, c.rule)
		})
	}
}

// The CRDs and the code have the same rule for identifiers.
func TestIdentifiersInCRD(t *testing.T) {
	t.Parallel()
	for _, c := range identifiertest.Cases {
		pool := testcluster.NewNstanceMachinePool("identifier", shardIDs...)
		pool.Spec.Subnets = []v1beta1.Identifier{v1beta1.Identifier(c.Value)}
		_, err := env.NstanceMachinePools().
			Create(t.Context(), pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if c.Valid && err != nil {
			t.Errorf("subnet %q: %v, want it accepted", c.Value, err)
		}
		if !c.Valid && !apierrors.IsInvalid(err) {
			t.Errorf("subnet %q: %v, want it rejected", c.Value, err)
		}
	}
}

func expectRejected(t *testing.T, err error, field, rule string) {
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
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: installation.Namespace},
		Spec: v1beta1.NstanceShardGroupSpec{
			Group: v1beta1.Identifier(group), Shard: v1beta1.Identifier(shard), Size: size,
		},
	}
}

// A pool reports a shard that is removed from the configuration once, and then waits.
func TestUnknownShard(t *testing.T) {
	const name = "lost"
	pools := env.NstanceMachinePools()
	configureShard(t, "us-west-9z", "127.0.0.1:1")
	// The webhook rejects it until the operator knows the shard.
	testcluster.Eventually(t, time.Minute, "the pool is created", func(ctx context.Context) error {
		_, err := pools.Create(ctx, testcluster.NewNstanceMachinePool(name, "us-west-2a", "us-west-9z"), metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		if err := pools.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	testcluster.Eventually(t, time.Minute, "the pool waits for the shard", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionReady); ready == nil || ready.Reason != v1beta1.ReasonNotSynced {
			return fmt.Errorf("condition Ready is %+v", ready)
		}
		return nil
	})
	// The other shard reports its group at any time.
	for before, seen := "none", ""; seen != before; {
		before = seen
		env.UntilQueued(t, time.Minute, "machinepool", 1)
		pool, err := env.NstanceMachinePool(t.Context(), name)
		require.NoError(t, err)
		seen = pool.ResourceVersion
	}
	from := env.AuditEnd(t)
	removeShard(t, "us-west-9z")
	testcluster.Eventually(t, time.Minute, "the pool names the shard", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
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
	testcluster.Eventually(t, time.Minute, "there is an event", func(ctx context.Context) error {
		count, err := env.CountEvents(ctx, name, v1beta1.ReasonUnknownShard)
		if err == nil && count == 0 {
			err = errors.New("no event")
		}
		return err
	})

	// Resyncs find nothing new to report.
	env.UntilQueued(t, 5*time.Minute, "machinepool", 3)
	writes := env.OperatorWrites(t, from, func(w controlplane.Write) bool {
		return strings.HasPrefix(w.Name, name) &&
			(w.Resource == "nstancemachinepools" || w.Resource == "nstanceshardgroups" || w.Resource == "machinepools")
	})
	if len(writes) != 1 {
		t.Errorf("%d writes, want the status alone:%s", len(writes), testcluster.Describe(writes))
	}
	count, err := env.CountEvents(t.Context(), name, v1beta1.ReasonUnknownShard)
	if err != nil || count != 1 {
		t.Errorf("%d events, error %v, want 1 event", count, err)
	}
	if depth, err := installation.Metric(t.Context(), env.Operator.URL(), "workqueue_depth", map[string]string{"name": "machinepool"}); err != nil || depth > 0 {
		t.Errorf("the queue has %v keys, error %v, want none", depth, err)
	}
}
