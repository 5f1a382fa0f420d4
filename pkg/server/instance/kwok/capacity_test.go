// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok/kwoktest"
)

func TestCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer func() { p.stop() }()
		take := func(key instance.GroupKey, subnet string) string {
			t.Helper()
			id := newID(t)
			if err := p.Create(t.Context(), instance.Spec{ID: id, Group: key, Type: p.types["m7i.large"], Subnet: subnet}); err != nil {
				t.Fatal(err)
			}
			return id
		}
		expect := func(want int) {
			t.Helper()
			if got, err := p.Capacity(t.Context(), "small"); err != nil || got != want {
				t.Errorf("there is room for %d, %v, want %d", got, err, want)
			}
		}
		expect(2)
		// Pending and running ones take room, of whatever group and tenant, and
		// those of another process too.
		first := take(group, "small")
		expect(1)
		second := take(instance.GroupKey{Tenant: "other", Group: "workers"}, "small")
		take(group, "large")
		expect(0)
		p.await(group, map[string]instance.State{first: instance.Running})
		expect(0)
		p.stop()
		p = start(t, client, "a")
		expect(0)
		// What is there is there, however many there should be.
		third := take(group, "small")
		expect(0)
		p.delete(third)
		expect(0)
		p.delete(second)
		expect(1)
		p.await(group, map[string]instance.State{third: gone})
		expect(1)
		if got, err := p.Capacity(t.Context(), "large"); err != nil || got < 1_000_000 {
			t.Errorf("a subnet without a limit has room for %d, %v", got, err)
		}
	})
}
