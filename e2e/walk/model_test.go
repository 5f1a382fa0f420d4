// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package walk

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// maxReplicas keeps the rotation of a whole pool short.
const maxReplicas = 6

// forbiddenType is an instance type that the limits of the shards do not allow.
const forbiddenType = "r7i.large"

// model is the state that the user has requested.
type model struct {
	pools []*poolModel
	// changes counts the requests.
	changes int
}

type poolModel struct {
	name     string
	exists   bool
	replicas int32
	// instanceType is the requested instance type, and typeBefore the instance type at the
	// beginning of a step. A change replaces all instances.
	instanceType, typeBefore string
	// rotation is the policy by which the instances are replaced, nil for none.
	rotation *v1beta1.RotationPolicy
	// spot is how many spot instances the pool may have, as spec.candidates has it, "" without
	// candidates. Another value replaces no instance.
	spot string
	// paused is set until the end of a step, and forbidden if the pool has an instance type until then
	// that the shards do not allow.
	paused, forbidden bool
	// deleted is set if the pool was deleted in this step.
	deleted bool
	// removed is by how many replicas the pool was scaled down in this step, and
	// replaced whether all of its instances may be replaced or deleted.
	removed  int32
	replaced bool
}

func newModel(t *testing.T, names ...string) *model {
	t.Helper()
	m := &model{}
	for n, name := range names {
		p := &poolModel{name: name}
		if n > 0 {
			p.rotation = &v1beta1.RotationPolicy{MaxSurge: ptr.To(intstr.FromString("50%")), Canary: 1}
		}
		if n > 1 {
			p.spot = spotShares[0]
		}
		m.pools = append(m.pools, p)
		p.create(t, 3)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		for _, p := range m.pools {
			if p.exists {
				env.DeletePools(t, p.name)
			}
		}
	})
	m.expectAgreement(t, m.observe(t))
	return m
}

// change makes one random change, and describes it. Without the webhooks of Cluster API,
// pools can only be scaled.
func (m *model) change(t *testing.T, random *rand.Rand, withoutWebhooks bool) string {
	t.Helper()
	m.changes++
	p := m.pools[random.IntN(len(m.pools))]
	if p.deleted || withoutWebhooks && !p.exists {
		return "nothing can be changed in " + p.name
	}
	if !p.exists {
		replicas := random.Int32N(maxReplicas + 1)
		p.create(t, replicas)
		return fmt.Sprintf("create %s with %d replicas", p.name, replicas)
	}
	switch kind := random.IntN(11); {
	case kind < 6 || withoutWebhooks:
		replicas := random.Int32N(maxReplicas + 1)
		retry(t, "scale "+p.name, func(ctx context.Context) error {
			patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
			_, err := env.ClusterAPI("machinepools").Patch(ctx, p.name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
			return err
		})
		p.removed += max(p.replicas-replicas, 0)
		p.replicas = replicas
		return fmt.Sprintf("scale %s to %d replicas", p.name, replicas)
	case kind < 8 && p.spot != "":
		p.spot = spotShares[random.IntN(len(spotShares))]
		p.forbidden = false
		p.patchType(t, "")
		return fmt.Sprintf("allow %s of %s to be spot instances", p.spot, p.name)
	case kind < 8:
		chosen := instanceTypes[random.IntN(len(instanceTypes))]
		p.replaced = p.replaced || chosen != p.instanceType
		p.instanceType, p.forbidden = chosen, false
		p.patchType(t, p.instanceType)
		return fmt.Sprintf("set the instance type of %s to %s", p.name, p.instanceType)
	case kind < 9:
		p.pause(t, true)
		return "pause " + p.name
	case kind < 10:
		p.forbidden = true
		p.patchType(t, forbiddenType)
		return fmt.Sprintf("set the instance type of %s to %s, which the shards do not allow", p.name, forbiddenType)
	default:
		if !p.hasFinalizer(t) {
			return "nothing can be changed in " + p.name
		}
		// A paused pool is not deleted.
		p.pause(t, false)
		retry(t, "delete "+p.name, func(ctx context.Context) error {
			return env.MachinePools().Delete(ctx, p.name, metav1.DeleteOptions{})
		})
		p.exists, p.deleted, p.replaced, p.forbidden = false, true, true, false
		return "delete " + p.name
	}
}

func (p *poolModel) create(t *testing.T, replicas int32) {
	t.Helper()
	p.exists, p.replicas, p.instanceType = true, replicas, instanceTypes[0]
	pool := testcluster.NewNstanceMachinePool(p.name, shardIDs...)
	pool.Spec.InstanceType, pool.Spec.Rotation = p.instanceType, p.rotation
	if p.spot != "" {
		pool.Spec.InstanceType, pool.Spec.Candidates = "", p.candidates()
	}
	retry(t, "create the MachinePool "+p.name, func(ctx context.Context) error {
		_, err := env.MachinePools().Create(ctx, testcluster.NewMachinePool(p.name, replicas), metav1.CreateOptions{})
		return ignoreExists(err)
	})
	retry(t, "create the NstanceMachinePool "+p.name, func(ctx context.Context) error {
		_, err := env.NstanceMachinePools().Create(ctx, pool, metav1.CreateOptions{})
		return ignoreExists(err)
	})
}

// spotShares are the shares of spot instances that a pool may have.
var spotShares = []string{"50%", "100%", "0%"}

// candidates are spot instances as far as p.spot allows them and a shard has them, and a fallback.
func (p *poolModel) candidates() []v1beta1.Candidate {
	return []v1beta1.Candidate{
		{Name: "spot", InstanceType: v1beta1.InstanceType(instanceTypes[1]), Market: v1beta1.MarketSpot, MaxReplicas: ptr.To(intstr.FromString(p.spot))},
		{Name: "standard", InstanceType: v1beta1.InstanceType(instanceTypes[1]), Market: v1beta1.MarketStandard},
		{Name: "fallback", InstanceType: v1beta1.InstanceType(instanceTypes[0])},
	}
}

// hasFinalizer reports whether Cluster API deletes the pool with its MachinePool. If a MachinePool
// is deleted before Cluster API has processed it, the pool stays, and the operator creates the
// MachinePool again.
func (p *poolModel) hasFinalizer(t *testing.T) (has bool) {
	t.Helper()
	retry(t, "get the MachinePool "+p.name, func(ctx context.Context) error {
		machinePool, err := env.MachinePools().Get(ctx, p.name, metav1.GetOptions{})
		if err == nil {
			has = len(machinePool.Finalizers) > 0
		}
		return err
	})
	return has
}

func (p *poolModel) pause(t *testing.T, paused bool) {
	t.Helper()
	value := "null"
	if paused {
		value = `""`
	}
	retry(t, "pause "+p.name, func(ctx context.Context) error {
		_, err := env.PatchNstanceMachinePool(ctx, p.name, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, clusterv1.PausedAnnotation, value))
		return err
	})
	p.paused = paused
}

// patchType sets an instance type, or the candidates of a pool that has candidates if it is "".
func (p *poolModel) patchType(t *testing.T, instanceType string) {
	t.Helper()
	spec := map[string]any{"instanceType": instanceType, "candidates": nil}
	if instanceType == "" {
		spec = map[string]any{"instanceType": nil, "candidates": p.candidates()}
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	require.NoError(t, err)
	retry(t, "edit "+p.name, func(ctx context.Context) error {
		_, err := env.PatchNstanceMachinePool(ctx, p.name, string(patch))
		return err
	})
}

// resume ends all pauses, and takes back what the shards do not allow.
func (m *model) resume(t *testing.T) {
	t.Helper()
	for _, p := range m.pools {
		if p.exists && p.paused {
			p.pause(t, false)
		}
		if p.exists && p.forbidden {
			p.forbidden = false
			if p.spot != "" {
				p.patchType(t, "")
			} else {
				p.patchType(t, p.instanceType)
			}
		}
	}
}

// instances are the instances of the servers by pool.
type instances map[string][]string

// observe returns the instances at the beginning of a step.
func (m *model) observe(t *testing.T) instances {
	t.Helper()
	observed := instances{}
	for _, p := range m.pools {
		p.removed, p.replaced, p.deleted, p.typeBefore = 0, false, false, p.instanceType
		retry(t, "the servers list "+p.name, func(ctx context.Context) (err error) {
			observed[p.name], err = listed(ctx, p.name)
			return err
		})
	}
	return observed
}

// expectAgreement waits until everything agrees with the model, and checks which of the
// instances before the step are left.
func (m *model) expectAgreement(t *testing.T, before instances) {
	t.Helper()
	for _, p := range m.pools {
		testcluster.Eventually(t, 5*time.Minute, p.name+" agrees with the model", func(ctx context.Context) error {
			if err := startOperator(ctx); err != nil {
				return err
			}
			return p.agrees(ctx, before[p.name])
		})
		after, err := listed(t.Context(), p.name)
		require.NoError(t, err)
		var missing []string
		for _, id := range before[p.name] {
			if !slices.Contains(after, id) {
				missing = append(missing, id)
			}
		}
		if !p.replaced && len(missing) > int(p.removed) {
			t.Errorf("%s was scaled down by %d, and lost %v", p.name, p.removed, missing)
		}
	}
}

// agrees succeeds when the objects, the servers and the Nodes agree with the model.
func (p *poolModel) agrees(ctx context.Context, before []string) error {
	ids, err := listed(ctx, p.name)
	if err != nil {
		return err
	}
	nodes, err := env.Nodes(ctx, p.name)
	if err != nil {
		return err
	}
	if !p.exists {
		if len(ids) > 0 || len(nodes) > 0 {
			return fmt.Errorf("it is deleted, and has %d instances and %d Nodes", len(ids), len(nodes))
		}
		return env.PoolDeleted(ctx, p.name)
	}
	if len(ids) != int(p.replicas) || len(nodes) != int(p.replicas) {
		return fmt.Errorf("the servers have %d instances, the provider %d, want %d", len(ids), len(nodes), p.replicas)
	}
	for _, shard := range shardIDs {
		group, err := env.Group(ctx, shard, p.name)
		if err != nil {
			return err
		}
		if got := group.GetInstanceType(); p.spot == "" && group != nil && got != p.instanceType {
			return fmt.Errorf("shard %s has the instance type %s, want %s", shard, got, p.instanceType)
		}
	}
	if p.instanceType != p.typeBefore {
		for _, id := range before {
			if slices.Contains(ids, id) {
				return fmt.Errorf("instance %s is not replaced yet", id)
			}
		}
	}
	return env.Running(ctx, p.name, p.replicas)
}

// listed returns the ids of the instances that the servers list, without those that are being
// terminated.
func listed(ctx context.Context, pool string) ([]string, error) {
	var ids []string
	for _, shard := range shardIDs {
		group, err := env.Group(ctx, shard, pool)
		if err != nil {
			return nil, err
		}
		for _, i := range group.GetInstances().GetInstances() {
			if i.GetStatus() == "pending" || i.GetStatus() == "running" {
				ids = append(ids, i.GetId())
			}
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// retry repeats a request until it succeeds: parts of the system are down.
func retry(t *testing.T, what string, request func(context.Context) error) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, what, request)
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
