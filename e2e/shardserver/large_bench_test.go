// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// largeGroups have largeSize instances each.
	largeGroups = 100
	largeSize   = 100
	// mostMemory is the most resident memory that the server may have, in MiB.
	mostMemory = 200
	// idleChecks is how many checks in a row, every checkInterval, must find no
	// activity before the server is considered idle: more time than the interval
	// at which it reads its configuration.
	idleChecks    = 10
	checkInterval = 500 * time.Millisecond
)

// BenchmarkLargeShard gives a shard 10,000 instances in 100 groups. It compares the time with a
// plain program that creates as many Nodes and records, measures the server's resident memory, and
// counts the writes and requests for a change of the size of a group: only objects of this group.
// Then it restarts the server, with its cache and without, which changes nothing. It does not
// delete the instances.
func BenchmarkLargeShard(b *testing.B) {
	shard := largeShard{id: shardIDs[0], server: env.ShardServer(shardIDs[0])}
	shard.operator = env.ShardClient(b, shard.id)
	empty, _ := shard.memory(b)
	for b.Loop() {
		fill := shard.fill(b)
		b.ReportMetric(empty, "MiB-empty")
		_, peak := shard.memory(b)
		b.ReportMetric(peak, "MiB-peak")
		b.ReportMetric(shard.checkMemory(b), "MiB-filled")
		b.ReportMetric(shard.metric(b, "process_cpu_seconds_total", nil), "fill-cpu-s")
		bare := createBare(b, shard.id) * (largeGroups * largeSize / bareInstances)
		b.ReportMetric(fill.Seconds(), "fill-s")
		b.ReportMetric(bare.Seconds(), "bare-s")
		b.ReportMetric(fill.Seconds()/bare.Seconds(), "fill/bare")
		shard.changeOne(b)

		b.ReportMetric(shard.restart(b).Seconds(), "warm-start-s")
		b.ReportMetric(shard.checkMemory(b), "MiB-warm")
		shard.changeOne(b)

		b.ReportMetric(shard.restart(b, cacheDir(b, shard.server)).Seconds(), "cold-start-s")
		b.ReportMetric(shard.checkMemory(b), "MiB-cold")
		shard.changeOne(b)
	}
}

// largeShard is a shard with many instances.
type largeShard struct {
	id       string
	server   *controlplane.Component
	operator nstancev1.OperatorServiceClient
}

// fill creates the groups and returns how long it takes until all instances run.
func (s *largeShard) fill(b *testing.B) time.Duration {
	b.Helper()
	begin := time.Now()
	var calls errgroup.Group
	for n := range largeGroups {
		calls.Go(func() error { return upsert(b.Context(), s.operator, groupName(n), largeSize) })
	}
	require.NoError(b, calls.Wait())
	s.untilRunning(b, largeGroups*largeSize)
	took := time.Since(begin)
	s.settle(b)
	return took
}

// changeOne changes the size of one group up and down again, and expects the server to do only the
// necessary work: one write of the groups, and one record and one Node for each instance.
func (s *largeShard) changeOne(b *testing.B) {
	b.Helper()
	const group, more = 7, 3
	name := groupName(group)
	before := s.settle(b)
	s.scale(b, name, largeSize+more)
	grown := s.settle(b)
	ids := s.idsByKey(b, name)
	up := grown.since(b, before, s.id)
	expectKeys(b, "replaced to grow", up.replaced, storage.GroupsKey(s.id))
	expectKeys(b, "removed to grow", up.removed)
	expectInstances(b, "created", up.created, ids, more)
	expectRequests(b, []string{"create"}, up.requests, up.created, ids)

	s.scale(b, name, largeSize)
	down := s.settle(b).since(b, grown, s.id)
	expectKeys(b, "replaced to shrink", down.replaced, storage.GroupsKey(s.id))
	expectKeys(b, "created to shrink", down.created)
	expectInstances(b, "removed", down.removed, ids, more)
	// Whether the Node exists is read once more, by its name.
	expectRequests(b, []string{"delete", "get"}, down.requests, down.removed, ids)
}

// restart stops the server, removes folders and starts it again. It expects that the
// server writes nothing and requests no change. It returns how long it takes until
// the server serves again.
func (s *largeShard) restart(b *testing.B, without ...string) time.Duration {
	b.Helper()
	before := s.settle(b)
	require.NoError(b, s.server.Stop(b.Context()))
	for _, folder := range without {
		require.NoError(b, os.RemoveAll(folder))
	}
	begin := time.Now()
	require.NoError(b, s.server.Start(b.Context()))
	testcluster.Eventually(b, timeout, "serving again", leads(s.operator))
	took := time.Since(begin)
	done := s.settle(b).since(b, before, s.id)
	if s.metric(b, "nstance_server_reconcile_duration_seconds", nil) == 0 {
		b.Error("no group was reconciled")
	}
	if len(done.created)+len(done.replaced)+len(done.removed) > 0 {
		b.Errorf("a start created objects %v, replaced %v and removed %v", done.created, done.replaced, done.removed)
	}
	if writes := done.writes(); len(writes) > 0 {
		b.Errorf("a start requested %d changes, the first is %+v", len(writes), writes[0])
	}
	if len(done.requests) == 0 {
		b.Error("the audit log has none of the server's reads")
	}
	return took
}

// scale sets the size of one group and returns when that many instances run.
func (s *largeShard) scale(b *testing.B, group string, size int32) {
	b.Helper()
	require.NoError(b, upsert(b.Context(), s.operator, group, size))
	s.untilRunning(b, largeSize*(largeGroups-1)+int(size))
}

// untilRunning returns when so many instances run.
func (s *largeShard) untilRunning(b *testing.B, count int) {
	b.Helper()
	s.poll(b, fmt.Sprintf("%d instances run", count), func() bool {
		const instances = "nstance_server_group_instances"
		running := s.metric(b, instances, map[string]string{"state": "running"})
		return running == float64(count) && s.metric(b, instances, nil) == running
	})
}

// settle returns when the server has been idle for a while.
func (s *largeShard) settle(b *testing.B) moment {
	b.Helper()
	last, idle := now(b), 0
	s.poll(b, "the server is idle", func() bool {
		next := now(b)
		if idle++; !next.since(b, last, s.id).none() {
			idle = 0
		}
		last = next
		return idle == idleChecks
	})
	return last
}

// poll returns when done does.
func (s *largeShard) poll(b *testing.B, what string, done func() bool) {
	b.Helper()
	testcluster.EventuallyEvery(b, checkInterval, 10*time.Minute, what, func(context.Context) error {
		if !done() {
			return errors.New("not yet")
		}
		return nil
	})
}

// metric returns the sum of the series of a metric of the server that have the labels.
func (s *largeShard) metric(b *testing.B, name string, labels map[string]string) float64 {
	b.Helper()
	value, err := installation.Metric(b.Context(), strings.TrimSuffix(s.server.Ready.URL, "/health"), name, labels)
	require.NoError(b, err)
	return value
}

// checkMemory returns the resident memory, in MiB, and fails the benchmark if it is too much.
func (s *largeShard) checkMemory(b *testing.B) float64 {
	b.Helper()
	resident, _ := s.memory(b)
	if resident > mostMemory {
		b.Errorf("%.0f MiB are resident, want at most %d", resident, mostMemory)
	}
	return resident
}

// memory returns the resident memory and its peak, in MiB.
func (s *largeShard) memory(b *testing.B) (resident, peak float64) {
	b.Helper()
	resident, peak, err := s.server.Memory()
	require.NoError(b, err)
	return resident, peak
}

// idsByKey returns the instances of a group by the keys of their records.
func (s *largeShard) idsByKey(b *testing.B, group string) map[string]string {
	b.Helper()
	list, err := s.operator.ListGroups(b.Context(), &emptypb.Empty{})
	require.NoError(b, err)
	ids := map[string]string{}
	for _, status := range list.Groups {
		if status.Key != group {
			continue
		}
		for _, providerID := range status.ProviderIds {
			id, err := puidv7.Parse(path.Base(providerID))
			require.NoError(b, err)
			ids[storage.InstanceKey(s.id, installation.Tenant, id.StorageKey())] = id.String()
		}
	}
	return ids
}

func groupName(n int) string { return fmt.Sprintf("group-%02d", n) }

const (
	bareInstances = 1000
	// bareWriters is how many instances are created at once: as many as the
	// provider creates Nodes at once.
	bareWriters = 8
)

// createBare creates Nodes and records like those of a shard, in the order in which the server
// does: the record, the Node, the record again. It decides, caches, watches and reports nothing.
// It returns the time that it takes.
func createBare(b *testing.B, shard string) time.Duration {
	b.Helper()
	config := env.AdminConfig()
	config.ContentType = runtime.ContentTypeProtobuf // like the server
	client, err := kubernetes.NewForConfig(config)
	require.NoError(b, err)
	nodes := client.CoreV1().Nodes()
	list, err := nodes.List(b.Context(), metav1.ListOptions{LabelSelector: kwok.LabelShard + "=" + shard, Limit: 1})
	require.NoError(b, err)
	model := list.Items[0]
	id, err := puidv7.Parse(model.Name)
	require.NoError(b, err)
	const bare = "bare"
	model.Labels[kwok.LabelShard] = bare // of no server
	bucket, err := file.Open(env.Installation.Bucket())
	require.NoError(b, err)
	record, err := bucket.Get(b.Context(), storage.InstanceKey(shard, model.Labels[kwok.LabelTenant], id.StorageKey()))
	require.NoError(b, err)
	records, err := file.Open(b.TempDir())
	require.NoError(b, err)
	begin := time.Now()
	var writers errgroup.Group
	writers.SetLimit(bareWriters)
	for range bareInstances {
		writers.Go(func() error {
			id, err := puidv7.New("knd")
			if err != nil {
				return err
			}
			key := storage.InstanceKey(bare, model.Labels[kwok.LabelTenant], id.StorageKey())
			etag, err := records.Create(b.Context(), key, record.Data)
			if err != nil {
				return err
			}
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: id.String(), Labels: model.Labels, Annotations: model.Annotations},
				Spec:       corev1.NodeSpec{ProviderID: "bare:///" + id.String()},
				Status:     model.Status,
			}
			if _, err := nodes.Create(b.Context(), node, metav1.CreateOptions{}); err != nil {
				return err
			}
			_, err = records.Replace(b.Context(), key, record.Data, etag)
			return err
		})
	}
	require.NoError(b, writers.Wait())
	took := time.Since(begin)
	err = nodes.DeleteCollection(context.WithoutCancel(b.Context()), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: kwok.LabelShard + "=" + bare})
	require.NoError(b, err)
	return took
}
