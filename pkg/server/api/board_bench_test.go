// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// largeGroup returns a board with one group of so many instances that run.
func largeGroup(t testing.TB, count int) (*Board, *shard) {
	b, s := newBoard()
	s.node = &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("2")}}}
	var ids []string
	for range count {
		i := shown(newID(t, "knd"), instance.Running)
		i.ProviderID = "kwok:///us-west-2a/" + i.ID
		i.CreatedAt = epoch
		s.running[key("workers")] = append(s.running[key("workers")], i)
		ids = append(ids, i.ID)
	}
	// As many as may be named go first, which is the most that there can be to tell.
	s.groups[key("workers")] = &groups.Group{Key: key("workers"), Size: int32(count), RemoveFirst: ids}
	b.Refresh(key("workers"))
	return b, s
}

// TestALargeGroupFitsIntoAMessage of the size that gRPC takes unless it is told
// otherwise: 4 MiB.
func TestALargeGroupFitsIntoAMessage(t *testing.T) {
	b, _ := largeGroup(t, 10_000)
	if size := proto.Size(b.watch("default").take()); size > 3<<20 {
		t.Errorf("an event has %d bytes", size)
	}
}

// BenchmarkInstanceOfALargeGroup changes the state of one instance, looks at the
// group again, and encodes the event for one watcher.
func BenchmarkInstanceOfALargeGroup(b *testing.B) {
	for _, count := range []int{100, 2_000, 10_000} {
		b.Run(fmt.Sprintf("instances=%d", count), func(b *testing.B) {
			board, s := largeGroup(b, count)
			s.groups[key("workers")].RemoveFirst = nil
			w := board.watch("default")
			states := []instance.State{instance.Stopped, instance.Running}
			var event *nstancev1.GroupEvent
			var data []byte
			n := 0
			for b.Loop() {
				s.running[key("workers")][count/2].State = states[n%2]
				n++
				board.Refresh(key("workers"))
				if event = w.take(); event == nil {
					b.Fatal("nothing was told")
				}
				var err error
				if data, err = proto.Marshal(event); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(data)), "bytes/event")
		})
	}
}
