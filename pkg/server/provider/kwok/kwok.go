// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package kwok is an instance provider without machines: an instance is a Node object, which
// kwok, if it runs, keeps ready
// (https://kwok.sigs.k8s.io/docs/user/kwok-manage-nodes-and-pods/).
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
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// workers is the maximum number of concurrent calls to the API server. They wait for the
	// network, not for the processor.
	workers = 8
	// callTimeout bounds each of these calls.
	callTimeout = 10 * time.Second
	// minRetryDelay and maxRetryDelay bound the backoff after a failed call.
	minRetryDelay = 200 * time.Millisecond
	maxRetryDelay = 30 * time.Second
	// confirmTimeout is how long the watch may take to show that a Node was
	// created or deleted. Then the call is repeated.
	confirmTimeout = time.Minute
)

// Config configures a Provider. Fields without a default are mandatory.
type Config struct {
	Shard   provider.Shard
	Options *Options
	// Client is a client for the cluster of the Nodes.
	Client NodeClient
	// CallContext returns the context of each call that changes something. A server that no
	// longer leads must make no such call, and workers may make a call long after it was
	// requested. Default: the context of Run.
	CallContext provider.CallContextFunc
}

// Provider creates and deletes Nodes. An existing Node is a running instance, unless its
// status annotation says otherwise. Workers carry out the requests to create or delete
// Nodes.
type Provider struct {
	config Config
	nodes  cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[string]
	synced chan struct{}

	// mu guards requests, absent and rejections.
	mu sync.Mutex
	// requests has the requests that the Nodes do not show yet, by instance id.
	requests map[string]request
	// absent has the instances whose Nodes are not in the cache, by id.
	absent map[string]absence
	// rejections may include rejections that have expired.
	rejections map[rejectionKey]rejection
}

// request is the requested state of an instance whose Node does not show it yet.
type request struct {
	spec provider.Spec
	// delete is true once the deletion was requested, whether or not the Node exists.
	delete bool
}

var (
	_ provider.Provider        = (*Provider)(nil)
	_ provider.CapacityChecker = (*Provider)(nil)
)

// New returns a provider. It uses only the options that need a restart to change, because
// each Spec contains its instance type.
func New(c Config) (*Provider, error) {
	nodes, err := newNodeInformer(c.Client, c.Shard)
	if err != nil {
		return nil, err
	}
	return &Provider{
		config: c,
		nodes:  nodes,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetryDelay, maxRetryDelay)),
		synced:     make(chan struct{}),
		requests:   map[string]request{},
		absent:     map[string]absence{},
		rejections: map[rejectionKey]rejection{},
	}, nil
}

// Run follows the Nodes and carries out requests until ctx is done.
func (p *Provider) Run(ctx context.Context, changed func(instance.GroupKey), failed provider.FailureFunc) error {
	registration, err := p.nodes.AddEventHandler(p.handler(changed))
	if err != nil {
		return fmt.Errorf("follow the Nodes of shard %s: %w", p.config.Shard.ID, err)
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

// Get returns an instance that was requested or whose Node exists.
func (p *Provider) Get(id string) (instance.VM, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.vm(id)
}

// List returns the instances of a group: requested instances, and instances whose Node
// exists.
func (p *Provider) List(group instance.GroupKey) []instance.VM {
	p.mu.Lock()
	defer p.mu.Unlock()

	ids := map[string]struct{}{}
	for _, node := range p.nodesOf(group) {
		ids[node.Name] = struct{}{}
	}
	for id, request := range p.requests {
		if request.spec.Group == group {
			ids[id] = struct{}{}
		}
	}
	for id, absent := range p.absent {
		if absent.vm.Group == group {
			ids[id] = struct{}{}
		}
	}
	vms := make([]instance.VM, 0, len(ids))
	for id := range ids {
		if vm, found := p.vm(id); found {
			vms = append(vms, vm)
		}
	}
	return vms
}

// vm returns an instance as its Node and its request together show it. mu must be locked.
func (p *Provider) vm(id string) (instance.VM, bool) {
	node, found := p.node(id)
	absent, isAbsent := p.absent[id]
	request, requested := p.requests[id]
	var vm instance.VM
	switch {
	case found:
		vm = fromNode(node)
	case isAbsent:
		vm = absent.vm
	case requested:
		vm = instance.VM{ID: id, Group: request.spec.Group, Origin: request.spec.Origin, State: instance.Pending}
	default:
		return instance.VM{}, false
	}
	if request.delete {
		vm.State = instance.Terminating
	}
	return vm, true
}

// Groups returns the groups of all instances, including instances that are being deleted.
func (p *Provider) Groups() []instance.GroupKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	groups := p.nodeGroups()
	for _, request := range p.requests {
		groups[request.spec.Group] = struct{}{}
	}
	for _, absent := range p.absent {
		groups[absent.vm.Group] = struct{}{}
	}
	return slices.Collect(maps.Keys(groups))
}

// Capacity returns the configured capacity of the subnet minus the number of instances that
// exist or were requested.
func (p *Provider) Capacity(_ context.Context, subnet string) (int, error) {
	capacity, limited := p.config.Options.SubnetCapacity[subnet]
	if !limited {
		return math.MaxInt32, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room(subnet, capacity), nil
}

// Create requests a Node, which appears after the boot delay. It rejects a request that
// exceeds a quota or the capacity of the subnet, because several callers may have read the
// same capacity. For a while it also rejects requests similar to one that the API server
// has rejected.
func (p *Provider) Create(_ context.Context, spec provider.Spec) error {
	if err := validateRendered(spec.Args); err != nil {
		return fmt.Errorf("create instance %s: %w", spec.ID, err)
	}
	// The userdata contains a secret, and no machine reads it.
	spec.Userdata, spec.Market = nil, marketArgument.Market(spec.Args)

	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.vm(spec.ID); known {
		return nil
	}
	if rejection, ok := p.rejections[rejectionKeyOf(spec)]; ok && time.Now().Before(rejection.until) {
		return fmt.Errorf("was rejected before: %w", rejection.err)
	}
	if err := p.checkCapacity(spec); err != nil {
		return err
	}
	p.requests[spec.ID] = request{spec: spec}
	p.queue.AddAfter(spec.ID, p.config.Options.BootDelay)
	return nil
}

// Delete requests the deletion of an instance. An instance that is still booting is deleted
// before its Node appears.
func (p *Provider) Delete(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	current, requested := p.requests[id]
	if current.delete {
		// The queue repeats the request until the watch shows the deletion.
		return nil
	}
	if !requested {
		vm, found := p.vm(id)
		if !found {
			return nil
		}
		current.spec = provider.Spec{ID: id, Group: vm.Group, Origin: vm.Origin}
	}
	current.delete = true
	p.requests[id] = current
	p.queue.Add(id)
	return nil
}

// work carries out one request. It returns false when the queue has shut down.
func (p *Provider) work(ctx context.Context, changed func(instance.GroupKey), failed provider.FailureFunc) bool {
	id, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(id)
	p.mu.Lock()
	request, requested := p.requests[id]
	absent, isAbsent := p.absent[id]
	p.mu.Unlock()
	if !requested && !isAbsent {
		p.queue.Forget(id)
		return true
	}
	deleted, err := p.confirm(ctx, id, changed, failed)
	if err == nil && !deleted && requested {
		err = p.carryOut(ctx, id, request, changed)
	}
	if ctx.Err() != nil {
		return false
	}
	if !requested {
		request.spec.Group = absent.vm.Group
	}
	if requested && !request.delete && isRejection(err) {
		klog.FromContext(ctx).Error(err, "Instance was rejected, will not retry", "instance", id)
		failed(request.spec.Group, id, err)
		p.queue.Forget(id)
		p.giveUp(request.spec, err)
		changed(request.spec.Group)
		return true
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Request for instance failed, will retry", "instance", id)
		failed(request.spec.Group, id, err)
		p.queue.AddRateLimited(id)
		return true
	}
	p.queue.Forget(id)
	return true
}

// carryOut makes one call to the API server. The queue never gives an id to two
// workers, so a deletion cannot overtake a running creation.
func (p *Provider) carryOut(ctx context.Context, id string, request request, changed func(instance.GroupKey)) error {
	if p.config.CallContext != nil {
		callCtx, cancel := p.config.CallContext(ctx)
		defer cancel()
		if err := deadline.Check(callCtx); err != nil {
			return fmt.Errorf("instance %s: %w", id, errors.Join(err, context.Cause(callCtx)))
		}
		ctx = callCtx
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes := p.config.Client

	if !request.delete {
		// An attempt whose response was lost may have created the Node.
		_, err := nodes.Create(ctx, p.newNode(request.spec), metav1.CreateOptions{FieldManager: fieldManager})
		if apierrors.IsAlreadyExists(err) {
			_, err = p.find(ctx, request.spec)
		}
		if err != nil {
			return fmt.Errorf("create Node %s: %w", id, err)
		}
		// The request stays until the watch shows the Node. A Node that another
		// client deletes before that must be created again.
		p.queue.AddAfter(id, confirmTimeout)
		return nil
	}
	uid, err := p.uidOf(ctx, request.spec)
	if err == nil {
		// The precondition protects another Node that may have the name by now.
		err = nodes.Delete(ctx, id, *metav1.NewPreconditionDeleteOptions(string(uid)))
	}
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, errForeignNode):
		if p.settle(id) {
			changed(request.spec.Group)
			break
		}
		// The cache has the Node: the watch is late, or the response was wrong.
		p.queue.AddAfter(id, confirmTimeout)
	case err != nil:
		return fmt.Errorf("delete Node %s: %w", id, err)
	default:
		// The request stays until the watch shows the deletion. Otherwise a Node
		// that the watch does not show yet would reappear as a running instance.
		p.queue.AddAfter(id, confirmTimeout)
	}
	return nil
}
