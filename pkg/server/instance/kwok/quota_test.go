// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok/kwoktest"
)

// limited returns the type m7i.large with a quota.
func (p *provider) limited(quota int32) instance.Type {
	limited := p.types["m7i.large"]
	limited.Quota = ptr.To(quota)
	return limited
}

// refuse orders one more instance of a type and expects to hear that its quota
// is used up, and that nothing is ordered.
func (p *provider) refuse(quota int32, text string) {
	p.t.Helper()
	before := len(p.List(group))
	if _, err := p.order(group, p.limited(quota)); err == nil || err.Error() != text {
		p.t.Errorf("got %v, want %s", err, text)
	}
	if after := len(p.List(group)); after != before {
		p.t.Errorf("there are %d instances after the refusal and %d before", after, before)
	}
}

func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		const full = "out of capacity: quota of 2 m7i.large instances is used up"
		other := instance.GroupKey{Tenant: "other", Group: "workers"}
		take := func(key instance.GroupKey, of instance.Type) string {
			t.Helper()
			id, err := p.order(key, of)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}

		// Pending ones count, of whatever group and tenant, and of no other type.
		first, second := take(group, p.limited(2)), take(other, p.limited(2))
		p.refuse(2, full)
		take(group, p.types["c7i.large"])
		// Running ones count, and those of another process too.
		p.await(group, map[string]instance.State{first: instance.Running})
		p.await(other, map[string]instance.State{second: instance.Running})
		p.refuse(2, full)
		p.stop()
		p = start(t, client, "a")
		defer func() { p.stop() }()
		p.refuse(2, full)
		// What another shard has does not count.
		b := start(t, client, "b")
		defer b.stop()
		if _, err := b.order(group, b.limited(1)); err != nil {
			t.Errorf("another shard is refused: %v", err)
		}

		// Room is made by a higher quota, none at all, and by an end.
		third := take(group, p.limited(3))
		fourth := take(group, p.types["m7i.large"])
		p.delete(third)
		p.delete(first)
		p.delete(fourth)
		fifth := take(group, p.limited(2))
		p.refuse(2, full)
		p.await(group, map[string]instance.State{first: gone, third: gone, fourth: gone, fifth: instance.Running})
		p.refuse(2, full)
		p.refuse(0, "out of capacity: quota of 0 m7i.large instances is used up")
	})
}

// TestANodeOnItsWayOutMakesRoom, whoever ordered it to go.
func TestANodeOnItsWayOutMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.createRunning(group)
		p.refuse(1, "out of capacity: quota of 1 m7i.large instances is used up")
		node, err := client.CoreV1().Nodes().Get(t.Context(), id, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.DeletionTimestamp = ptr.To(metav1.Now())
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.await(group, map[string]instance.State{id: instance.Terminating})
		if _, err := p.order(group, p.limited(1)); err != nil {
			t.Errorf("was refused: %v", err)
		}
	})
}
