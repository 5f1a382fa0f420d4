// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok"
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
		// Whoever asked before somebody else ordered is refused.
		id := newID(t)
		err := p.Create(t.Context(), instance.Spec{ID: id, Group: group, Type: p.types["m7i.large"], Subnet: "small"})
		if want := "out of capacity: no room for more than 2 instances in subnet small"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, known := p.Get(id); known {
			t.Error("is ordered all the same")
		}
		// What is there is there, however many there should be.
		third := p.createRunning(group)
		move(t, client, third, "small")
		expect(0)
		p.delete(third)
		expect(0)
		p.delete(second)
		expect(1)
		p.await(group, map[string]instance.State{third: gone})
		expect(1)
		take(group, "small")
		if got, err := p.Capacity(t.Context(), "large"); err != nil || got < 1_000_000 {
			t.Errorf("a subnet without a limit has room for %d, %v", got, err)
		}
	})
}

// move makes a Node one of another subnet, and waits until that is seen.
func move(t *testing.T, client *fake.Clientset, id, subnet string) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels[kwok.LabelSubnet] = subnet
	if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}
