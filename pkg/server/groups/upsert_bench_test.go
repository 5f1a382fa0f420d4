// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// BenchmarkUpsert changes one of many groups, and after each change replaces an
// object of as many bytes by its etag. The metric x-replace is how much longer the
// change takes. It grows until the bytes cost more than the write's being made
// durable, and then no more: a change is linear in the size of the object.
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
			if err != nil {
				b.Fatal(err)
			}
			var replacing time.Duration
			size := int32(1)
			for b.Loop() {
				size++
				upsert(b, s, key, Change{Size: size})

				b.StopTimer()
				start := time.Now()
				data[0]++ // another object, as every change makes one
				if etag, err = store.Replace(b.Context(), "bare", data, etag); err != nil {
					b.Fatal(err)
				}
				replacing += time.Since(start)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed())/float64(replacing), "x-replace")
			b.ReportMetric(float64(len(data)), "bytes/object")
		})
	}
}

// groupsOf returns an object with so many dynamic groups.
func groupsOf(b *testing.B, count int) string {
	b.Helper()
	groups := map[string]*stored{}
	for i := range count {
		groups[fmt.Sprintf("group-%d", i)] = &stored{
			Template: "worker", Size: int32(i % 10), InstanceType: "t3.large", SubnetPools: []string{"open", "other"},
			Vars: map[string]string{"role": "worker", "index": fmt.Sprint(i)},
		}
	}
	data, err := json.Marshal(content{"default": groups})
	if err != nil {
		b.Fatal(err)
	}
	return string(data)
}
