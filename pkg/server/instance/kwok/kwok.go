// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package kwok is an instance provider without machines: an instance is a Node
// object, which kwok (or nobody) keeps ready. Everything above the provider is
// as with a cloud.
package kwok

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	// workers is how many calls to the API server are under way at most. They
	// wait for the network, not for the processor.
	workers = 8
	// callTimeout bounds each of these calls.
	callTimeout = 10 * time.Second
	// retryAfter and retryAtMost bound the wait after a call that failed.
	retryAfter  = 200 * time.Millisecond
	retryAtMost = 30 * time.Second
	// confirmAfter is when a Node that was made or deleted must have been seen
	// to come or go.
	confirmAfter = time.Minute
)

// Provider makes and deletes Nodes. A Node that is there is a running instance,
// unless it says otherwise. What is not yet visible there, an ordered instance or
// a deletion, is an order that workers carry out.
type Provider struct {
	// Bound is put around the context of each call that changes something, so
	// that none is made by a server that leads no more: orders are carried out
	// later than they are given. Nil means no such bound. It must not be changed
	// after Run.
	Bound func(context.Context) (context.Context, context.CancelFunc)

	config *config.Config
	client kubernetes.Interface
	nodes  cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[string]
	synced chan struct{}

	// mu guards orders and refusals.
	mu sync.Mutex
	// orders by instance id.
	orders map[string]order
	// refusals of the last while.
	refusals map[likeness]refusal
}

// order is what shall become of an instance that the Nodes do not show yet.
type order struct {
	spec instance.Spec
	// end is true once the instance shall go, be it there or not.
	end bool
}

var _ instance.Provider = (*Provider)(nil)

// New returns a provider for the cluster and shard of c that keeps its Nodes
// through client. Of c it uses only what needs a restart to change: an order
// brings the rest.
func New(c *config.Config, client kubernetes.Interface) (*Provider, error) {
	nodes, err := newNodeInformer(client, c.ClusterID, c.Shard.ID)
	if err != nil {
		return nil, err
	}
	return &Provider{
		config: c,
		client: client,
		nodes:  nodes,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryAfter, retryAtMost)),
		synced:   make(chan struct{}),
		orders:   map[string]order{},
		refusals: map[likeness]refusal{},
	}, nil
}

// Run follows the Nodes and carries out orders until ctx ends.
func (p *Provider) Run(ctx context.Context, changed func(instance.GroupKey), failed instance.FailureFunc) error {
	registration, err := p.nodes.AddEventHandler(p.handler(changed))
	if err != nil {
		return fmt.Errorf("following the Nodes of shard %s: %w", p.config.Shard.ID, err)
	}
	var running sync.WaitGroup
	running.Go(func() { p.nodes.RunWithContext(ctx) })
	defer running.Wait()

	defer p.queue.ShutDown()
	select {
	case <-ctx.Done():
		return nil
	case <-registration.HasSyncedChecker().Done():
		close(p.synced)
	}
	for range workers {
		running.Go(func() {
			for p.work(ctx, changed, failed) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

// Synced is closed when all Nodes of the shard are known.
func (p *Provider) Synced() <-chan struct{} {
	return p.synced
}

// Get returns an instance that is ordered or whose Node is there.
func (p *Provider) Get(id string) (instance.VM, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.vm(id)
}

// List returns the instances of a group: those ordered and those whose Node is
// there.
func (p *Provider) List(group instance.GroupKey) []instance.VM {
	p.mu.Lock()
	defer p.mu.Unlock()

	ids := map[string]struct{}{}
	for _, node := range p.nodesOf(group) {
		ids[node.Name] = struct{}{}
	}
	for id, order := range p.orders {
		if order.spec.Group == group {
			ids[id] = struct{}{}
		}
	}
	vms := make([]instance.VM, 0, len(ids))
	for id := range ids {
		if vm, there := p.vm(id); there {
			vms = append(vms, vm)
		}
	}
	return vms
}

// vm returns an instance as Node and order together show it. It is called with
// mu held.
func (p *Provider) vm(id string) (instance.VM, bool) {
	node, there := p.node(id)
	order, ordered := p.orders[id]
	var vm instance.VM
	switch {
	case there:
		vm = fromNode(node)
	case ordered:
		vm = instance.VM{ID: id, Group: order.spec.Group, State: instance.Pending}
	default:
		return instance.VM{}, false
	}
	if order.end {
		vm.State = instance.Terminating
	}
	return vm, true
}

// Groups returns the groups of all instances, those of groups that are deleted
// too.
func (p *Provider) Groups() []instance.GroupKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	groups := p.nodeGroups()
	for _, order := range p.orders {
		groups[order.spec.Group] = struct{}{}
	}
	return slices.Collect(maps.Keys(groups))
}

// Capacity returns what the configuration says of the subnet, less what is there
// and ordered. A subnet of which it says nothing has always room.
func (p *Provider) Capacity(_ context.Context, subnet string) (int, error) {
	capacity, limited := p.config.Shard.Infra.Kwok.SubnetCapacity[subnet]
	if !limited {
		return math.MaxInt32, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room(subnet, capacity), nil
}

// Create orders a Node, which appears after the boot delay. It refuses one that
// exceeds a quota, or the capacity of its subnet: whoever asked for it may not be
// the only one who did. One like another that the API server has refused is
// refused for a while without asking again.
func (p *Provider) Create(_ context.Context, spec instance.Spec) error {
	if err := validateArgs(spec.Args); err != nil {
		return fmt.Errorf("creating instance %s: %w", spec.ID, err)
	}
	// There is no machine that would read it, and it has a secret.
	spec.Userdata = nil

	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.vm(spec.ID); known {
		return nil
	}
	if refusal, ok := p.refusals[likenessOf(spec)]; ok && time.Now().Before(refusal.until) {
		return fmt.Errorf("was refused before: %w", refusal.err)
	}
	typeName := spec.Type.Name
	if quota := spec.Type.Quota; quota != nil {
		taken := p.count(byType, typeName, func(spec instance.Spec) bool { return spec.Type.Name == typeName })
		if taken >= int(*quota) {
			return fmt.Errorf("out of capacity: quota of %d %s instances is used up", *quota, typeName)
		}
	}
	if capacity, limited := p.config.Shard.Infra.Kwok.SubnetCapacity[spec.Subnet]; limited && p.room(spec.Subnet, capacity) == 0 {
		return fmt.Errorf("out of capacity: no room for more than %d instances in subnet %s", capacity, spec.Subnet)
	}
	p.orders[spec.ID] = order{spec: spec}
	p.queue.AddAfter(spec.ID, p.config.Shard.Infra.Kwok.BootDelay)
	return nil
}

// Delete orders that an instance goes. One that is still booting goes without
// its Node's ever being there.
func (p *Provider) Delete(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	current, ordered := p.orders[id]
	if !ordered {
		node, there := p.node(id)
		if !there {
			return nil
		}
		current.spec = instance.Spec{ID: id, Group: groupOf(node)}
	}
	current.end = true
	p.orders[id] = current
	p.queue.Add(id)
	return nil
}

// work carries out one order. It returns false when there will be no more.
func (p *Provider) work(ctx context.Context, changed func(instance.GroupKey), failed instance.FailureFunc) bool {
	id, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(id)
	p.mu.Lock()
	order, ordered := p.orders[id]
	p.mu.Unlock()
	if !ordered {
		p.queue.Forget(id)
		return true
	}
	err := p.carryOut(ctx, id, order, changed)
	if ctx.Err() != nil {
		return false
	}
	if !order.end && isRefusal(err) {
		klog.FromContext(ctx).Error(err, "Instance is refused, giving up its order", "instance", id)
		failed(order.spec.Group, id, err)
		p.queue.Forget(id)
		p.giveUp(order.spec, err)
		changed(order.spec.Group)
		return true
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Instance is not as ordered, will retry", "instance", id)
		failed(order.spec.Group, id, err)
		p.queue.AddRateLimited(id)
		return true
	}
	p.queue.Forget(id)
	return true
}

// carryOut makes one call to the API server. The queue never has two workers at
// one id, so a deletion cannot overtake a creation that is under way.
func (p *Provider) carryOut(ctx context.Context, id string, order order, changed func(instance.GroupKey)) error {
	if p.Bound != nil {
		bounded, cancel := p.Bound(ctx)
		defer cancel()
		if err := storage.Ended(bounded); err != nil {
			return fmt.Errorf("instance %s: %w", id, errors.Join(err, context.Cause(bounded)))
		}
		ctx = bounded
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes := p.client.CoreV1().Nodes()

	if !order.end {
		// An attempt whose answer was lost may have made the Node.
		_, err := nodes.Create(ctx, p.newNode(order.spec), metav1.CreateOptions{FieldManager: fieldManager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating Node %s: %w", id, err)
		}
		// The order stands until the Node is seen. One that somebody deletes
		// before that never is, and has to be made again.
		p.queue.AddAfter(id, confirmAfter)
		return nil
	}
	switch err := nodes.Delete(ctx, id, metav1.DeleteOptions{}); {
	case apierrors.IsNotFound(err):
		if p.settle(id) {
			changed(order.spec.Group)
		}
	case err != nil:
		return fmt.Errorf("deleting Node %s: %w", id, err)
	default:
		// The order stands until the Node is seen to go. A Node that is not
		// even seen yet would else come back as an instance that runs.
		p.queue.AddAfter(id, confirmAfter)
	}
	return nil
}

// settle forgets the order to end id when neither the API server nor the cache
// has its Node. Otherwise the handler does, when the Node goes.
func (p *Provider) settle(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.node(id); there {
		return false
	}
	delete(p.orders, id)
	return true
}
