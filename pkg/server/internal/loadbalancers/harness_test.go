// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package loadbalancers

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// workersKey is the group of the tests.
var workersKey = instance.GroupKey{Tenant: "default", Group: "workers"}

// world has the instances of one group, which a test changes, and two load balancers. It
// outlives the terms.
type world struct {
	t        *testing.T
	balancer *providertest.Balancers
	syncer   *Syncer
	registry *prometheus.Registry
	stop     func()
	leads    atomic.Bool

	mu          sync.Mutex
	instances   map[string]instance.Instance
	wanted      []string
	config      *config.Config
	unconfirmed bool
	// beforeGet is called before a group is read.
	beforeGet  func()
	changed    int
	failures   []string
	listErrors int
}

// newWorld returns a world of instances with agents whose group has a load balancer. Its
// deregistration delay is 2 minutes.
func newWorld(t *testing.T) *world {
	w := &world{
		t:         t,
		balancer:  providertest.NewBalancers("web", "api"),
		instances: map[string]instance.Instance{},
		wanted:    []string{"web"},
		stop:      func() {},
	}
	w.balancer.Delay = 2 * time.Minute
	w.configure("web", "api")
	w.leads.Store(true)
	return w
}

// configure sets the load balancers in the configuration.
func (w *world) configure(keys ...string) {
	c := &config.Config{LoadBalancers: map[string]provider.LoadBalancer{}, Templates: map[string]config.Template{"worker": {}}}
	for _, key := range keys {
		c.LoadBalancers[key] = provider.LoadBalancer{Key: key, Settings: providertest.BalancerSettings{Endpoint: key}}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.config = c
}

// lead ends the current term, and begins another.
func (w *world) lead() {
	w.stop()
	ctx, cancel := context.WithCancel(klog.NewContext(w.t.Context(), logr.Discard()))
	w.registry = prometheus.NewRegistry()
	w.syncer = New(Options{
		Balancers: w.balancer,
		VM: func(id string) (instance.VM, bool) {
			i, found := w.Get(id)
			return instance.VM{ID: id, ProviderID: i.ProviderID, State: i.State}, found && i.Known
		},
		Instances: w,
		Groups:    worldGroups{w},
		Agents:    true,
		CallContext: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			if !w.leads.Load() {
				cancel()
			}
			return ctx, cancel
		},
		Changed: func(instance.GroupKey) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changed++
		},
		Failed: func(_ instance.GroupKey, id string, _ error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.failures = append(w.failures, id)
		},
		FailedList: func(error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.listErrors++
		},
		Metrics: NewMetrics(w.registry),
	})
	w.registry.MustRegister(w.syncer)
	var running sync.WaitGroup
	running.Go(func() { w.syncer.Run(ctx) })
	w.stop = func() {
		cancel()
		running.Wait()
		w.stop = func() {}
	}
	w.pass(time.Second)
}

// pass lets time pass, and waits until all goroutines are idle.
func (w *world) pass(d time.Duration) {
	w.syncer.Enqueue()
	time.Sleep(d)
	synctest.Wait()
}

// set changes an instance, or adds it.
func (w *world) set(id string, change func(*instance.Instance)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, found := w.instances[id]
	if !found {
		i = instance.Instance{Record: instance.Record{ID: id, Tenant: workersKey.Tenant, Group: workersKey.Group}}
	}
	change(&i)
	w.instances[id] = i
}

// The states that an instance has one after another.

func booting(i *instance.Instance) {
	i.Known, i.ProviderID, i.State, i.Agent.State = true, "vm-"+i.ID, instance.Pending, instance.AgentAwaited
}

func registered(i *instance.Instance) {
	i.Registration = &instance.Registration{}
}

func reporting(i *instance.Instance) {
	booting(i)
	registered(i)
	i.State, i.Agent.State = instance.Running, instance.AgentReporting
}

func lost(i *instance.Instance) { i.State, i.Agent.State = instance.Impaired, instance.AgentLost }

func missing(i *instance.Instance) { i.Known, i.State = false, instance.Missing }

func draining(i *instance.Instance) {
	i.Drain = &instance.Drain{DeleteAt: time.Now().Add(time.Hour)}
}

// waits reports whether the termination of an instance waits.
func (w *world) waits(id string) bool {
	i, _ := w.Get(id)
	return w.syncer.Waits(&i)
}

// takeChanged returns how many changes were reported since the last time.
func (w *world) takeChanged() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.changed
	w.changed = 0
	return changed
}

func (w *world) Keys() []instance.GroupKey { return []instance.GroupKey{workersKey} }

func (w *world) List(instance.GroupKey) []instance.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []instance.Instance
	for _, i := range w.instances {
		if i.DeletedAt.IsZero() {
			list = append(list, i)
		}
	}
	return list
}

func (w *world) Get(id string) (instance.Instance, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, found := w.instances[id]
	return i, found
}

// worldGroups are the groups of a world.
type worldGroups struct{ *world }

func (w worldGroups) Get(instance.GroupKey) (*groups.Group, bool) {
	w.mu.Lock()
	beforeGet := w.beforeGet
	w.mu.Unlock()
	if beforeGet != nil {
		beforeGet()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return &groups.Group{Key: workersKey, Settings: groups.Settings{Template: "worker", LoadBalancers: w.wanted}}, true
}

func (w worldGroups) Deleted(instance.GroupKey) bool { return false }

func (w worldGroups) Unconfirmed(instance.GroupKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unconfirmed
}

func (w worldGroups) Config() *config.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.config
}
