// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instance/kwok"
	"nstance.dev/operator/pkg/server/puidv7"
)

const bootDelay = 30 * time.Second

var group = instance.GroupKey{Tenant: "default", Group: "workers"}

// provider is a provider that runs, and the changes it told of. Everything of it
// has to be in one bubble of synctest, so that time goes on by itself.
type provider struct {
	*kwok.Provider
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
	c, err := config.Parse([]byte(`{
		"cluster": {"id": "test"},
		"shard": {
			"id": "`+shard+`",
			"infra": {
				"provider": "kwok", "region": "us-west-2", "zone": "zone-of-`+shard+`",
				"options": {"kubeconfig": "k", "boot_delay": "`+bootDelay.String()+`"},
			},
			"bind": {"health_addr": ":0", "operator_addr": ":0"},
			"tls": {"ca": "ca", "cert": "cert", "key": "key"},
			"subnet_pools": {"default": ["subnet-a"]},
		},
	}`), "")
	if err != nil {
		t.Fatal(err)
	}
	made, err := kwok.New(c, client)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := &provider{
		Provider: made, t: t, types: c.Shard.Infra.Kwok.InstanceTypes,
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
	id, err := puidv7.New("knd")
	if err != nil {
		p.t.Fatal(err)
	}
	return id.String(), p.Create(p.t.Context(), instance.Spec{ID: id.String(), Group: key, Type: instanceType})
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
