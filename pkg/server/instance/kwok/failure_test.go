// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok/kwoktest"
)

func TestFailedCallsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		failures := fail(client, "create", 3)
		id := p.createRunning(group)
		if *failures != 0 {
			t.Errorf("runs after %d failures too few", *failures)
		}
		p.expectFailures(3, id, "creating Node "+id+": try later")
		failures = fail(client, "delete", 3)
		p.delete(id)
		p.await(group, map[string]instance.State{id: gone})
		if *failures != 0 {
			t.Errorf("is gone after %d failures too few", *failures)
		}
		p.expectFailures(3, id, "deleting Node "+id+": try later")
	})
}

// expectFailures expects to have been told so many times that an instance is not
// as ordered.
func (p *provider) expectFailures(times int, id, text string) {
	p.t.Helper()
	if len(p.failures) != times {
		p.t.Errorf("was told of %d failures, want %d", len(p.failures), times)
	}
	for len(p.failures) > 0 {
		if f := <-p.failures; f.group != group || f.id != id || f.err.Error() != text {
			p.t.Errorf("was told that %s of %s failed with %q, want %s of %s with %q", f.id, f.group, f.err, id, group, text)
		}
	}
}

// fail lets the next calls of a verb fail. It returns how many are left to.
func fail(client *fake.Clientset, verb string, times int) *int {
	client.PrependReactor(verb, "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if times == 0 {
			return false, nil, nil
		}
		times--
		return true, nil, apierrors.NewServiceUnavailable("try later")
	})
	return &times
}

func TestALostAnswerMakesNoSecondNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		lost := false
		client.PrependReactor("create", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if lost {
				return false, nil, nil
			}
			lost = true
			if err := client.Tracker().Create(action.GetResource(), action.(clienttesting.CreateAction).GetObject(), ""); err != nil {
				t.Error(err)
			}
			return true, nil, errors.New("the connection was lost")
		})
		p.createRunning(group)
		<-time.After(time.Hour)
		nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(nodes.Items) != 1 || len(p.List(group)) != 1 {
			t.Errorf("there are %d Nodes and %d instances, want one: %v", len(nodes.Items), len(p.List(group)), err)
		}
	})
}

// TestADeletedNodeThatWasNeverSeen holds the watch back while a Node comes and
// goes. At no time may it look as if it ran: a group would seem to have one too
// many.
func TestADeletedNodeThatWasNeverSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		held := watch.NewRaceFreeFake()
		client.PrependWatchReactor("nodes", clienttesting.DefaultWatchReactor(held, nil))
		p := start(t, client, "a")
		defer p.stop()
		var node *corev1.Node
		client.PrependReactor("delete", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			obj, err := client.Tracker().Get(action.GetResource(), "", action.(clienttesting.DeleteAction).GetName())
			if err == nil {
				node = obj.(*corev1.Node)
			}
			return false, nil, nil
		})
		id := p.create(group)
		<-time.After(bootDelay)
		synctest.Wait()
		p.delete(id)
		synctest.Wait()
		if node == nil {
			t.Fatal("the Node was not there when it was deleted")
		}
		held.Add(node)
		synctest.Wait()
		if states := p.states(group); len(states) != 1 || states[id] != instance.Terminating {
			t.Errorf("when the creation is seen the instances are %v, want one that terminates", states)
		}
		held.Delete(node)
		p.await(group, map[string]instance.State{id: gone})

		// When the watch misses both, the order ends all the same.
		id = p.create(group)
		<-time.After(bootDelay)
		synctest.Wait()
		p.delete(id)
		p.await(group, map[string]instance.State{id: gone})
	})
}

// TestCallsAreBound: an order is carried out long after it was given, maybe by a
// server that leads no more.
func TestCallsAreBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		defer p.stop()
		id := p.create(group)
		p.leads.Store(false)
		<-time.After(time.Hour)
		if got := calls(client); got["create"] != 0 || p.states(group)[id] != instance.Pending {
			t.Errorf("without the lead it made calls %v, and the instance is %v", got, p.states(group))
		}
		p.leads.Store(true)
		p.await(group, map[string]instance.State{id: instance.Running})
	})
}
