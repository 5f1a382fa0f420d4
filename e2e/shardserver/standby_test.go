// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/tier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// leaderTimeout is longer than a busy machine delays a renewal.
const leaderTimeout = 4 * time.Second

// TestStandby kills and suspends the leading server of two in turn while groups are scaled. The
// other takes over each time, and a suspended server changes nothing after it is resumed.
func TestStandby(t *testing.T) {
	shard := shardIDs[0]
	standby, err := env.Installation.StartStandby(t.Context(), shard)
	require.NoError(t, err)
	first := env.ShardClient(t, shard)
	leader := server{env.ShardServer(shard), first}
	t.Cleanup(func() {
		if err := env.Component(standby).Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := await(context.Background(), "the first server's lead", leads(first)); err != nil {
			t.Error(err)
		}
	})
	conn, err := env.Installation.DialStandby(shard)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	other := server{env.Component(standby), nstancev1.NewOperatorServiceClient(conn)}
	testcluster.Eventually(t, timeout, "the first server's lead", leads(leader.operator))
	if _, err := other.operator.ListGroups(t.Context(), &emptypb.Empty{}); status.Code(err) != codes.Unavailable {
		t.Errorf("the standby answers %v, want Unavailable", err)
	}

	sizes := map[string]int32{"workers": 5}
	require.NoError(t, upsert(t.Context(), leader.operator, "workers", 5))
	for round := range tier.Pick(3, 6) {
		before := readLock(t, shard)
		// The leader fails while instances are being created, or being deleted.
		sizes["workers"] = int32(3 + 7*((round+1)%2))
		require.NoError(t, upsert(t.Context(), leader.operator, "workers", sizes["workers"]))
		killed := round%3 == 0
		if killed {
			err = leader.Kill(t.Context())
		} else {
			err = testcluster.FreezeUnlocked(leader.Component, env.Installation.Bucket())
		}
		require.NoError(t, err)
		testcluster.Eventually(t, timeout, "the standby's lead", leads(other.operator))
		after := readLock(t, shard)
		if after.LeaderID == before.LeaderID {
			t.Fatalf("the lock is %+v still", after)
		}
		testcluster.Eventually(t, timeout, "the standby's work", func(ctx context.Context) error {
			return settled(ctx, other.operator, shard, sizes)
		})
		if killed {
			require.NoError(t, leader.Start(t.Context()))
		} else {
			objects := snapshot(t, shard)
			require.NoError(t, leader.Thaw())
			testcluster.Eventually(t, timeout, "the old leader rejects calls", func(ctx context.Context) error {
				_, err := leader.operator.ListGroups(ctx, &emptypb.Empty{})
				if status.Code(err) != codes.Unavailable {
					return fmt.Errorf("answered %w", err)
				}
				return nil
			})
			if now := snapshot(t, shard); !equal(objects, now) {
				t.Errorf("the old leader changed the storage from %v to %v", names(objects), names(now))
			}
			if err := settled(t.Context(), other.operator, shard, sizes); err != nil {
				t.Errorf("with the old leader back: %v", err)
			}
		}
		leader, other = other, leader
	}
	deleteGroup(t, leader.operator, "workers")
	testcluster.Eventually(t, timeout, "the group is deleted", func(ctx context.Context) error { return settled(ctx, leader.operator, shard, nil) })
}

// server is one of the servers of a shard.
type server struct {
	*controlplane.Component
	operator nstancev1.OperatorServiceClient
}

// leads succeeds when a server serves operators.
func leads(operator nstancev1.OperatorServiceClient) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := operator.ListGroups(ctx, &emptypb.Empty{})
		return err
	}
}

type lock struct {
	LeaderID    string    `json:"leaderID"`
	LastUpdated time.Time `json:"lastUpdated"`
}

func readLock(t *testing.T, shard string) (l lock) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.ShardLeaderKey(shard))))
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	require.NoError(t, err)
	return l
}

// snapshot reads the groups and the records of a shard.
func snapshot(t *testing.T, shard string) map[string][]byte {
	t.Helper()
	objects := map[string][]byte{}
	read := func(path string) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		objects[path] = data
	}
	read(filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.GroupsKey(shard))))
	folder := filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.InstancePrefix(shard)))
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && filepath.Ext(path) == ".json" {
			read(path)
		}
		return err
	})
	require.NoError(t, err)
	return objects
}

func equal(a, b map[string][]byte) bool {
	for path, data := range a {
		if other, found := b[path]; !found || !bytes.Equal(data, other) {
			return false
		}
	}
	return len(a) == len(b)
}

func names(objects map[string][]byte) []string {
	var names []string
	for path := range objects {
		names = append(names, filepath.Base(path))
	}
	return names
}
