// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shardClient talks to a shard's server behind the operator's back.
func shardClient(t testing.TB, shard string) nstancev1.OperatorServiceClient {
	t.Helper()
	connection, err := env.n.Dial(shard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return nstancev1.NewOperatorServiceClient(connection)
}

func upsertBehind(t testing.TB, shard, group string, size int32) {
	t.Helper()
	_, err := shardClient(t, shard).UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sizeOnShard is the size that a shard's server itself reports.
func sizeOnShard(ctx context.Context, client nstancev1.OperatorServiceClient, group string) (int32, error) {
	groups, err := client.ListGroups(ctx, &emptypb.Empty{})
	if err != nil {
		return 0, err
	}
	for _, g := range groups.GetGroups() {
		if g.GetKey() == group {
			return g.GetSize(), nil
		}
	}
	return 0, fmt.Errorf("no group %s", group)
}

func getShardGroup(ctx context.Context, group, shard string) (*v1beta1.NstanceShardGroup, error) {
	return env.nstance.InfrastructureV1beta1().NstanceShardGroups(nstance.Namespace).
		Get(ctx, v1beta1.ShardGroupName(group, shard), metav1.GetOptions{})
}

// What somebody changes on a server is put right.
func TestDriftIsCorrected(t *testing.T) {
	const name, shard = "drift", "us-west-2b"
	createPool(t, name, 3)
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 3) })

	client := shardClient(t, shard)
	for _, size := range []int32{5, 0} {
		upsertBehind(t, shard, name, size)
		eventually(t, time.Minute, fmt.Sprintf("size %d is put right", size), func(ctx context.Context) error {
			got, err := sizeOnShard(ctx, client, name)
			if err == nil && got != 1 {
				err = fmt.Errorf("size is %d, want 1", got)
			}
			return err
		})
	}
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 3) })
}

// A shard that is down holds up nobody else, loses nothing, and gets the latest
// size once when it is back.
func TestShardOutage(t *testing.T) {
	const name, down = "outage", "us-west-2b"
	createPool(t, name, 6)
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 6) })
	before, err := getShardGroup(t.Context(), name, down)
	if err != nil {
		t.Fatal(err)
	}

	server := env.cp.Component("shard-" + down)
	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	restarted := false
	t.Cleanup(func() {
		if !restarted {
			if err := server.Start(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	for _, replicas := range []int32{9, 15, 12} {
		scale(t, name, replicas)
		for _, up := range []string{"us-west-2a", "us-west-2c"} {
			client := shardClient(t, up)
			eventually(t, time.Minute, fmt.Sprintf("%s gets its share of %d", up, replicas), func(ctx context.Context) error {
				size, err := sizeOnShard(ctx, client, name)
				if err == nil && size != replicas/3 {
					err = fmt.Errorf("size is %d, want %d", size, replicas/3)
				}
				return err
			})
		}
	}
	eventually(t, 45*time.Second, "the shard group says that its shard is away", func(ctx context.Context) error {
		group, err := getShardGroup(ctx, name, down)
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionFalse(group.Status.Conditions, v1beta1.ConditionShardReachable) {
			return fmt.Errorf("conditions %+v", group.Status.Conditions)
		}
		if !slices.Equal(group.Status.ProviderIDs, before.Status.ProviderIDs) {
			t.Errorf("provider ids became %v, want %v", group.Status.ProviderIDs, before.Status.ProviderIDs)
		}
		return nil
	})
	eventually(t, time.Minute, "the pool keeps the ids of the shard that is away", func(ctx context.Context) error {
		pool, err := getPool(ctx, name)
		if err != nil {
			return err
		}
		for _, id := range before.Status.ProviderIDs {
			if !slices.Contains(pool.Spec.ProviderIDList, id) {
				t.Errorf("%s has left the pool's list", id)
			}
		}
		if len(pool.Spec.ProviderIDList) != 10 || pool.Status.Shards.Reachable != 2 {
			return fmt.Errorf("%d ids and %d shards reachable, want 10 and 2", len(pool.Spec.ProviderIDList), pool.Status.Shards.Reachable)
		}
		if !meta.IsStatusConditionFalse(pool.Status.Conditions, v1beta1.ConditionShardsReachable) {
			return errors.New("ShardsReachable is not False")
		}
		return nil
	})

	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	restarted = true
	eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 12) })
	// The server counts since it started: it was told once, and not of the sizes
	// in between.
	if got := upsertsOf(t, down); got != 1 {
		t.Errorf("the shard received UpsertGroup %v times since it is back, want once", got)
	}
}
