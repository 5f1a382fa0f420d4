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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Deleting a pool, from whichever end, leaves nothing behind: no object, no
// group on a server and no Node. A shard that does not answer is waited for.
func TestDeletePool(t *testing.T) {
	for _, whole := range []struct {
		name    string
		outages []outage
		remove  func(ctx context.Context, name string) error
	}{
		{"MachinePool", []outage{allUp, down, hanging}, func(ctx context.Context, name string) error {
			return env.capi.MachinePools(nstance.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		}},
		{"NstanceMachinePool", []outage{allUp, down}, func(ctx context.Context, name string) error {
			return env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		}},
	} {
		for i, outage := range whole.outages {
			t.Run(whole.name+", "+outage.name, func(t *testing.T) {
				name := fmt.Sprintf("gone-%s-%d", strings.ToLower(whole.name[:1]), i)
				runPool(t, name, 6, shardIDs...)
				remove := func() {
					if err := whole.remove(t.Context(), name); err != nil {
						t.Fatal(err)
					}
				}
				if outage.begin == nil {
					remove()
				} else {
					end := outage.begin(t, shardComponent(shardIDs[2]))
					remove()
					untilWaiting(t, name, shardIDs[2])
					if _, err := getPool(t.Context(), name); err != nil {
						t.Errorf("the pool did not wait: %v", err)
					}
					end()
				}
				untilNothingIsLeft(t, name)
			})
		}
	}
}

// A pool that is deleted before Cluster API has become its owner goes as well:
// Cluster API waits for the end of the pool, and is told of it only as its owner.
func TestDeletePoolAtOnce(t *testing.T) {
	const name = "gone-at-once"
	if _, err := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
		Create(t.Context(), newPool(name, shardIDs...), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pools := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace)
	eventually(t, time.Minute, "the shard groups are made", func(ctx context.Context) error {
		groups, err := shardGroups(ctx, name)
		if err == nil && len(groups) < len(shardIDs) {
			err = fmt.Errorf("%d shard groups", len(groups))
		}
		return err
	})
	end := hanging.begin(t, shardComponent(shardIDs[0]))
	if err := pools.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	untilWaiting(t, name, shardIDs[0])
	eventually(t, time.Minute, "Cluster API waits for the pool", func(ctx context.Context) error {
		machinePool, err := env.capi.MachinePools(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && machinePool.Status.Phase != string(clusterv1.MachinePoolPhaseDeleting) {
			err = fmt.Errorf("the MachinePool's phase is %q", machinePool.Status.Phase)
		}
		return err
	})
	end()
	untilNothingIsLeft(t, name)
}

// An operator that is killed on the way leaves the rest to the next one.
func TestDeletePoolWithOperatorKilled(t *testing.T) {
	const name = "gone-killed"
	runPool(t, name, 6, shardIDs...)
	operator := env.cp.Component(env.operator.Component)
	end := down.begin(t, shardComponent(shardIDs[0]))
	if err := env.capi.MachinePools(nstance.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	untilWaiting(t, name, shardIDs[0])
	if err := operator.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
	mustStart(t, operator)
	untilNothingIsLeft(t, name)
}

// A shard that leaves a pool takes its instances with it, the others take over.
func TestDeleteShardOfPool(t *testing.T) {
	for i, outage := range []outage{allUp, down} {
		t.Run(outage.name, func(t *testing.T) {
			name, leaving := fmt.Sprintf("leaving-%d", i), shardIDs[1]
			runPool(t, name, 6, shardIDs...)
			t.Cleanup(func() { deletePool(t, name) })
			var end func()
			if outage.begin != nil {
				end = outage.begin(t, shardComponent(leaving))
			}
			patch := fmt.Appendf(nil, `{"spec":{"shards":[%q,%q]}}`, shardIDs[0], shardIDs[2])
			_, err := env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
				Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if outage.begin != nil {
				untilShardGroupWaits(t, name, leaving)
				eventually(t, time.Minute, "the other shards take over", func(ctx context.Context) error {
					for _, shard := range []string{shardIDs[0], shardIDs[2]} {
						group, err := getShardGroup(ctx, name, shard)
						if err != nil {
							return err
						}
						if group.Spec.Size != 3 || group.Status.Replicas == nil || *group.Status.Replicas != 3 {
							return fmt.Errorf("shard %s: size %d, status %+v", shard, group.Spec.Size, group.Status)
						}
					}
					return nil
				})
				end()
			}
			eventually(t, 2*time.Minute, "the shard's part is gone", func(ctx context.Context) error {
				return errors.Join(sizesAre(ctx, name, 3, 3), running(ctx, name, 6), withoutGroup(ctx, t, leaving, name))
			})
		})
	}
}

// A shard group that somebody deletes by hand comes back.
func TestDeleteShardGroup(t *testing.T) {
	for i, outage := range []outage{allUp, hanging} {
		t.Run(outage.name, func(t *testing.T) {
			name, shard := fmt.Sprintf("back-%d", i), shardIDs[2]
			runPool(t, name, 3, shardIDs...)
			t.Cleanup(func() { deletePool(t, name) })
			before, err := getShardGroup(t.Context(), name, shard)
			if err != nil {
				t.Fatal(err)
			}
			var end func()
			if outage.begin != nil {
				end = outage.begin(t, shardComponent(shard))
			}
			err = env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).Delete(t.Context(), before.Name, metav1.DeleteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if outage.begin != nil {
				untilShardGroupWaits(t, name, shard)
				end()
			}
			eventually(t, 2*time.Minute, "the shard group is made again", func(ctx context.Context) error {
				after, err := getShardGroup(ctx, name, shard)
				if err == nil && after.UID == before.UID {
					err = errors.New("it is still the old one")
				}
				return errors.Join(err, running(ctx, name, 3))
			})
		})
	}
}

// Deleting the Cluster deletes its pools. The operator makes an empty Cluster
// anew: without one no pool could be.
func TestDeleteCluster(t *testing.T) {
	for i, outage := range []outage{allUp, down} {
		t.Run(outage.name, func(t *testing.T) {
			name := fmt.Sprintf("with-cluster-%d", i)
			runPool(t, name, 3, shardIDs...)
			before, err := env.capi.Clusters(nstance.Namespace).Get(t.Context(), clusterName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var end func()
			if outage.begin != nil {
				end = outage.begin(t, shardComponent(shardIDs[0]))
			}
			if err := env.capi.Clusters(nstance.Namespace).Delete(t.Context(), clusterName, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if outage.begin != nil {
				untilWaiting(t, name, shardIDs[0])
				end()
			}
			untilNothingIsLeft(t, name)
			eventually(t, 3*time.Minute, "there is a Cluster again", func(ctx context.Context) error {
				after, err := env.capi.Clusters(nstance.Namespace).Get(ctx, clusterName, metav1.GetOptions{})
				if err == nil && after.UID == before.UID {
					err = fmt.Errorf("it is still the old one: %+v", after.Status.Conditions)
				}
				return err
			})
			everythingIsGone(t)
		})
	}
}

// runPool makes a pool and waits until it runs.
func runPool(t *testing.T, name string, replicas int32, shards ...string) {
	t.Helper()
	if err := tryCreatePoolOn(t.Context(), name, replicas, shards...); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Minute, name+" runs", func(ctx context.Context) error { return running(ctx, name, replicas) })
}

// untilWaiting waits until all that is left of a pool is the part of one shard,
// and both say what they wait for.
func untilWaiting(t *testing.T, name, shard string) {
	t.Helper()
	untilShardGroupWaits(t, name, shard)
	eventually(t, 2*time.Minute, "the pool waits for the shard alone", func(ctx context.Context) error {
		groups, err := shardGroups(ctx, name)
		if err != nil {
			return err
		}
		if len(groups) != 1 || groups[0].Spec.Shard != v1beta1.Identifier(shard) {
			return fmt.Errorf("%d shard groups are left", len(groups))
		}
		pool, err := getPool(ctx, name)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1beta1.ReasonDeleting {
			return fmt.Errorf("condition Ready is %+v", ready)
		}
		return nil
	})
}

// untilShardGroupWaits waits until a shard group that is being deleted says that
// its shard cannot be reached.
func untilShardGroupWaits(t *testing.T, name, shard string) {
	t.Helper()
	eventually(t, 2*time.Minute, "the shard group says what it waits for", func(ctx context.Context) error {
		group, err := getShardGroup(ctx, name, shard)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionReady)
		reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable)
		if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1beta1.ReasonDeleting || ready.Message == "" {
			return fmt.Errorf("condition Ready is %+v", ready)
		}
		if reachable == nil || reachable.Status != metav1.ConditionFalse || reachable.Reason != v1beta1.ReasonShardUnreachable {
			return fmt.Errorf("condition ShardReachable is %+v", reachable)
		}
		return nil
	})
}
