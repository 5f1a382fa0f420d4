// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/shard"
)

// tellAlso has another shard announce the drain of an instance with the provider
// id of a Node.
func (w *world) tellAlso(id, node string, deleteAt time.Time) {
	key := cache.NewObjectName(id, "i-"+node)
	w.servers.mu.Lock()
	w.settled[id] = true
	w.notices[key] = shard.Notice{InstanceID: key.Name, ProviderID: "kwok:///" + node, Group: "workers", State: shard.Draining,
		Reason: "scale-down", Since: time.Now(), DeleteAt: deleteAt, Announced: w.notices[key].Announced + 1}
	w.servers.mu.Unlock()
	w.controller.InstanceChanged(key.Namespace, key.Name)
}

// One server that is configured as two shards tells everything twice.
func TestTwoInstancesMayClaimOneNode(t *testing.T) {
	for name, withdrawn := range map[string]string{"the first is withdrawn": "a", "the second is withdrawn": "b"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, newNode("n1"), newPod("web-0", "n1"), newPod("web-1", "n1"))
				w.refuse = func(string) error { return errBudget }
				w.tell("n1", time.Now().Add(time.Hour))
				after(time.Second)
				w.tellAlso("b", "n1", time.Now().Add(time.Hour))
				after(time.Minute)
				for _, id := range []string{"a", "b"} {
					if blocked, message, draining := w.controller.OfInstance(id, "i-n1"); !blocked || !draining {
						t.Errorf("the drain of shard %s is blocked: %t, %q", id, blocked, message)
					}
				}
				w.servers.mu.Lock()
				delete(w.notices, cache.NewObjectName(withdrawn, "i-n1"))
				// Its Node is uncordoned if the mark is its own, and cordoned for the other.
				w.instances[cache.NewObjectName(withdrawn, "i-n1")] = shard.Instance{State: shard.InstanceRunning}
				w.servers.mu.Unlock()
				w.controller.InstanceChanged(withdrawn, "i-n1")
				after(time.Minute)
				w.wantCordoned("n1", "ours")
				w.mu.Lock()
				w.refuse = func(string) error { return nil }
				w.mu.Unlock()
				after(30 * time.Second)
				w.want("i-n1")
				if n := len(w.controller.evictions.pods) + len(w.controller.evictions.byDrain); n > 0 {
					t.Errorf("%d evictions are remembered", n)
				}
			})
		})
	}
}

// A budget that cannot be read when a Pod becomes blocked is named later.
// A second Node of the provider id that comes and goes ends no pause.
// A Node that becomes unreachable and comes back has its Pods waited for.
