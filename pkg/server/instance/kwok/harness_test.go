// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok"
	"nstance.dev/operator/pkg/server/puidv7"
)

const bootDelay = 30 * time.Second

var group = instance.GroupKey{Tenant: "default", Group: "workers"}

var instanceTypes = map[string]instance.Type{
	"m7i.large": {Name: "m7i.large", CPU: resource.MustParse("2"), Memory: resource.MustParse("8Gi"), Arch: "amd64"},
	"c7i.large": {Name: "c7i.large", CPU: resource.MustParse("2"), Memory: resource.MustParse("4Gi"), Arch: "amd64"},
}

// provider is a provider that runs, and the changes it told of. Everything of it
// has to be in one bubble of synctest, so that time goes on by itself.
type provider struct {
	*kwok.Provider
	// leads is false when calls are out of bounds.
	leads    *atomic.Bool
	t        *testing.T
	types    map[string]instance.Type
	changes  chan instance.GroupKey
	failures chan failure
	// stop returns when nothing of the provider runs any more.
	stop func()
}

// failure is what the provider told of an order that it could not carry out.
type failure struct {
	group instance.GroupKey
	id    string
	err   error
}

// start runs the provider of a shard of cluster "test" over client.
func start(t *testing.T, client *fake.Clientset, shard string) *provider {
	t.Helper()
	c := &config.Config{ClusterID: "test", Shard: config.Shard{ID: shard, Infra: config.Infra{
		Provider: config.ProviderKwok, Region: "us-west-2", Zone: "zone-of-" + shard,
		Kwok: config.Kwok{BootDelay: bootDelay, InstanceTypes: instanceTypes, SubnetCapacity: map[string]int32{"small": 2}},
	}}}
	made, err := kwok.New(c, client)
	if err != nil {
		t.Fatal(err)
	}
	leads := new(atomic.Bool)
	leads.Store(true)
	made.Bound = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		if !leads.Load() {
			cancel()
		}
		return ctx, cancel
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &provider{
		Provider: made, leads: leads, t: t, types: instanceTypes,
		changes: make(chan instance.GroupKey, 1000), failures: make(chan failure, 1000),
	}
	var running sync.WaitGroup
	running.Go(func() {
		changed := func(key instance.GroupKey) { p.changes <- key }
		failed := func(key instance.GroupKey, id string, err error) { p.failures <- failure{key, id, err} }
		if err := made.Run(ctx, changed, failed); err != nil {
			t.Error(err)
		}
	})
	p.stop = func() {
		cancel()
		running.Wait()
	}
	<-p.Synced()
	synctest.Wait()
	return p
}

// create orders one instance and returns its id.
func (p *provider) create(key instance.GroupKey) string {
	p.t.Helper()
	id, err := p.order(key, p.types["m7i.large"])
	if err != nil {
		p.t.Fatal(err)
	}
	return id
}

// order orders one instance of a type.
func (p *provider) order(key instance.GroupKey, instanceType instance.Type) (string, error) {
	p.t.Helper()
	id := newID(p.t)
	return id, p.Create(p.t.Context(), instance.Spec{ID: id, Group: key, Type: instanceType})
}

func newID(t *testing.T) string {
	t.Helper()
	id, err := puidv7.New("knd")
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}

// createRunning orders one instance and waits until it runs.
func (p *provider) createRunning(key instance.GroupKey) string {
	p.t.Helper()
	id := p.create(key)
	p.await(key, map[string]instance.State{id: instance.Running})
	return id
}

func (p *provider) delete(id string) {
	p.t.Helper()
	if err := p.Delete(p.t.Context(), id); err != nil {
		p.t.Fatal(err)
	}
}

// states returns the instances of a group.
func (p *provider) states(key instance.GroupKey) map[string]instance.State {
	states := map[string]instance.State{}
	for _, i := range p.List(key) {
		states[i.ID] = i.State
	}
	return states
}

// await returns when the group has the instances of want, among others. Those of
// state gone must not be there.
func (p *provider) await(key instance.GroupKey, want map[string]instance.State) {
	p.t.Helper()
	late := time.After(time.Hour)
	for {
		states, met := p.states(key), true
		for id, state := range want {
			current, there := states[id]
			met = met && (there && current == state || !there && state == gone)
		}
		if met {
			return
		}
		select {
		case <-p.changes:
		case <-late:
			p.t.Fatalf("after an hour the instances are %v, want %v", states, want)
		}
	}
}

// gone is no state that an instance has.
const gone instance.State = -1

// calls returns how many calls of each verb client has had for Nodes, and
// forgets them.
func calls(client *fake.Clientset) map[string]int {
	verbs := map[string]int{}
	for _, action := range client.Actions() {
		if action.GetResource().Resource == "nodes" {
			verbs[action.GetVerb()]++
		}
	}
	client.ClearActions()
	return verbs
}
