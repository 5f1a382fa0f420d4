// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
)

// BenchmarkUpsert changes one of many groups, and after each change replaces an
// object of the same size by its etag. The metric x-replace is the ratio of the
// two durations. It grows until the size dominates the cost of a durable write,
// and then stays constant: a change is linear in the size of the object.
func BenchmarkUpsert(b *testing.B) {
	for _, count := range []int{10, 100, 1000, 10000} {
		b.Run(fmt.Sprintf("groups=%d", count), func(b *testing.B) {
			store := newStorage(b)
			createObject(b, store, groupsOf(b, count))
			s := open(b, store)
			key := instance.GroupKey{Tenant: "default", Group: "group-5"}
			upsert(b, s, key, Change{Size: 1})

			data := readObject(b, store).Data
			etag, err := store.Create(b.Context(), "bare", data)
			require.NoError(b, err)
			var replacing time.Duration
			size := int32(1)
			for b.Loop() {
				size++
				upsert(b, s, key, Change{Size: size})

				b.StopTimer()
				start := time.Now()
				data[0]++ // new content, as after every change
				etag, err = store.Replace(b.Context(), "bare", data, etag)
				require.NoError(b, err)
				replacing += time.Since(start)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed())/float64(replacing), "x-replace")
			b.ReportMetric(float64(len(data)), "bytes/object")
		})
	}
}

// groupsOf returns an object with count dynamic groups.
func groupsOf(b *testing.B, count int) string {
	b.Helper()
	groups := map[string]*stored{}
	for i := range count {
		groups[fmt.Sprintf("group-%d", i)] = &stored{
			Settings: Settings{Template: "worker", InstanceType: "t3.large", SubnetPools: []string{"open", "other"}, Vars: map[string]string{"role": "worker", "index": fmt.Sprint(i)}}, Size: int32(i % 10),
		}
	}
	data, err := json.Marshal(map[string]map[string]*stored{"default": groups})
	require.NoError(b, err)
	return string(data)
}
