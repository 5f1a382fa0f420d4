// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardserver shows the guarantees of shard servers on their own: processes
// are killed, stopped and replaced while groups are scaled, with Nodes of a real API
// server as instances. No operator runs.
package shardserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/provider/kwok"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// timeout is how long a test waits for an expected state.
const timeout = 2 * time.Minute

// env is the cluster that all tests of this package share.
var env *testcluster.Cluster

func TestMain(m *testing.M) {
	var shards []installation.Shard
	for _, id := range shardIDs {
		shards = append(shards, installation.Shard{ID: id, LeaderTimeout: leaderTimeout})
	}
	without := []string{controlplane.ControllerManager, controlplane.Scheduler, controlplane.CAPI, controlplane.KWOK}
	// BenchmarkLargeShard counts the server's reads.
	readers := []string{userOf(shardIDs[0])}
	testcluster.Main(m, &env, testcluster.Options{Without: without, AuditReads: readers, Shards: shards, NoOperator: true})
}

// await is testcluster.Eventually for goroutines other than the test's.
func await(ctx context.Context, what string, check func(context.Context) error) error {
	return testcluster.Poll(ctx, 50*time.Millisecond, timeout, what, check)
}

// upsert sets the size of a group and returns when a server has accepted it.
func upsert(ctx context.Context, operator nstancev1.OperatorServiceClient, group string, size int32) error {
	return await(ctx, "scale group "+group, func(ctx context.Context) error {
		_, err := operator.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{
			Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
		})
		return err
	})
}

// settled succeeds when a shard lists exactly these groups and sizes, each with as many instances
// as its size, and exactly these instances have Nodes and records.
func settled(ctx context.Context, operator nstancev1.OperatorServiceClient, shard string, sizes map[string]int32) error {
	list, err := operator.ListGroups(ctx, &emptypb.Empty{})
	if err != nil {
		return err
	}
	var ids []string
	listed := map[string]int32{}
	for _, group := range list.Groups {
		listed[group.Key] = group.Size
		if group.ActualSize != group.Size {
			return fmt.Errorf("group %s has %d of %d instances", group.Key, group.ActualSize, group.Size)
		}
		for _, providerID := range group.ProviderIds {
			ids = append(ids, providerID[strings.LastIndexByte(providerID, '/')+1:])
		}
	}
	for group, size := range sizes {
		if got, found := listed[group]; !found || got != size {
			return fmt.Errorf("group %s: listed %t with size %d, want %d", group, found, got, size)
		}
	}
	if len(listed) != len(sizes) {
		return fmt.Errorf("there are %d groups, want %d", len(listed), len(sizes))
	}
	slices.Sort(ids)
	nodes, err := nodesOf(ctx, shard)
	if err != nil {
		return err
	}
	var names []string
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, ids) {
		return fmt.Errorf("the Nodes are %v, the instances %v", names, ids)
	}
	records, err := os.ReadDir(filepath.Join(env.Installation.Bucket(), "instance", shard))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	stored := 0
	for _, record := range records {
		if strings.HasSuffix(record.Name(), ".json") && !strings.HasPrefix(record.Name(), ".") {
			stored++
		}
	}
	if stored != len(ids) {
		return fmt.Errorf("there are %d records of %d instances", stored, len(ids))
	}
	return nil
}

func nodesOf(ctx context.Context, shard string) ([]corev1.Node, error) {
	list, err := env.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: kwok.LabelShard + "=" + shard})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
