// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// largeGroup returns a StatusCache with one group of count running instances.
func largeGroup(t testing.TB, count int) (*StatusCache, *shard) {
	b, s := newStatusCache()
	s.node = &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("2")}}}
	var ids []string
	for range count {
		i := shown(newID(t, "knd"), instance.Running)
		i.ProviderID = "kwok:///us-west-2a/" + i.ID
		i.CreatedAt = epoch
		s.instances[key("workers")] = append(s.instances[key("workers")], i)
		ids = append(ids, i.ID)
	}
	// removeFirst has all instances, which makes the largest possible status.
	s.groups[key("workers")] = &groups.Group{Key: key("workers"), Size: int32(count), RemoveFirst: ids}
	b.Refresh(key("workers"))
	return b, s
}

// TestLargeGroupFitsIntoMessage of gRPC's default maximum size, 4 MiB
// (https://pkg.go.dev/google.golang.org/grpc#MaxCallRecvMsgSize).
func TestLargeGroupFitsIntoMessage(t *testing.T) {
	b, _ := largeGroup(t, 10_000)
	if size := proto.Size(b.watch("default").take()); size > 3<<20 {
		t.Errorf("an event has %d bytes", size)
	}
}

// BenchmarkInstanceOfALargeGroup changes the state of one instance, refreshes the
// group, and encodes the event for one watcher.
func BenchmarkInstanceOfALargeGroup(b *testing.B) {
	for _, count := range []int{100, 2_000, 10_000} {
		b.Run(fmt.Sprintf("instances=%d", count), func(b *testing.B) {
			statuses, s := largeGroup(b, count)
			s.groups[key("workers")].RemoveFirst = nil
			w := statuses.watch("default")
			states := []instance.State{instance.Stopped, instance.Running}
			var event *nstancev1.GroupEvent
			var data []byte
			n := 0
			for b.Loop() {
				s.instances[key("workers")][count/2].State = states[n%2]
				n++
				statuses.Refresh(key("workers"))
				if event = w.take(); event == nil {
					b.Fatal("no event was sent")
				}
				var err error
				data, err = proto.Marshal(event)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(len(data)), "bytes/event")
		})
	}
}
