// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package shardserver shows what shard servers promise on their own: processes
// that are killed, stopped and replaced while groups are scaled, with Nodes of a
// real API server as instances. No operator runs.
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/instance/kwok"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

var shardIDs = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// env is the cluster that all tests of this package share.
var env struct {
	*testcluster.Cluster
	kube kubernetes.Interface
}

func TestMain(m *testing.M) {
	var shards []nstance.Shard
	for _, id := range shardIDs {
		shards = append(shards, nstance.Shard{ID: id, LeaderTimeout: leaderTimeout})
	}
	without := []string{controlplane.ControllerManager, controlplane.Scheduler, controlplane.CAPI, controlplane.KWOK}
	// What BenchmarkLargeShard has the server ask for is counted.
	readers := []string{userOf(shardIDs[0])}
	testcluster.Main(m, testcluster.Options{Without: without, AuditReads: readers, Shards: shards},
		func(_ context.Context, cluster *testcluster.Cluster) (err error) {
			env.Cluster = cluster
			env.kube, err = kubernetes.NewForConfig(cluster.Config())
			return err
		})
}

// dial returns a client that calls as the operator at a server of a shard.
func dial(t testing.TB, shard string) nstancev1.OperatorServiceClient {
	t.Helper()
	conn, err := env.Nstance.Dial(shard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return nstancev1.NewOperatorServiceClient(conn)
}

// eventually returns when check succeeds.
func eventually(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	if err := await(t.Context(), what, check); err != nil {
		t.Fatal(err)
	}
}

// await is eventually for other goroutines than the test's.
func await(ctx context.Context, what string, check func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, err, last)
	}
	return nil
}

// upsert sets the size of a group and comes back when a server has taken it.
func upsert(ctx context.Context, operator nstancev1.OperatorServiceClient, group string, size int32) error {
	return await(ctx, "scaling group "+group, func(ctx context.Context) error {
		_, err := operator.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{
			Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
		})
		return err
	})
}

// settled returns an error unless a shard lists exactly the groups and sizes
// wanted, each with as many instances as it shall have, and these are exactly the
// Nodes and the records that there are.
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
	records, err := os.ReadDir(filepath.Join(env.Nstance.Bucket(), "instance", shard))
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
	list, err := env.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: kwok.LabelShard + "=" + shard})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
