// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestADeletedNodeThatTheWatchDidNotShow delays the watch while a Node is created
// and deleted. The instance must not be listed as running at any time: its group
// would seem to have one too many.
func TestADeletedNodeThatTheWatchDidNotShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		delayed := watch.NewRaceFreeFake()
		client.PrependWatchReactor("nodes", clienttesting.DefaultWatchReactor(delayed, nil))
		p := start(t, client, "a")
		var node *corev1.Node
		client.PrependReactor("delete", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			obj, err := client.Tracker().Get(action.GetResource(), "", action.(clienttesting.DeleteAction).GetName())
			if err == nil {
				node = obj.(*corev1.Node)
			}
			return false, nil, nil
		})
		id := p.MustCreate(spec())
		<-time.After(bootDelay)
		synctest.Wait()
		p.MustDelete(id)
		synctest.Wait()
		if node == nil {
			t.Fatal("the Node did not exist when it was deleted")
		}
		// The second request must not find out that there is no Node, and be done.
		p.MustDelete(id)
		synctest.Wait()
		delayed.Add(node)
		synctest.Wait()
		if states := p.States(group); len(states) != 1 || states[id] != instance.Terminating {
			t.Errorf("when the watch shows the Node the instances are %v, want one that is terminating", states)
		}
		delayed.Delete(node)
		p.Await(group, map[string]instance.State{id: providertest.Deleted})

		// The instance is deleted even if the watch misses both events.
		id = p.MustCreate(spec())
		<-time.After(bootDelay)
		synctest.Wait()
		p.MustDelete(id)
		p.Await(group, map[string]instance.State{id: providertest.Deleted})
	})
}
