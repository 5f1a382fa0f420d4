// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// minRetryDelay and maxRetryDelay bound the backoff after a failed call.
	minRetryDelay = 200 * time.Millisecond
	maxRetryDelay = 30 * time.Second
)

// Options configure the parts of a Provider that differ by cloud.
type Options struct {
	// CallContext returns the context of each call that changes something, so that a server
	// that no longer leads makes no such call. Default: the context of Run.
	CallContext provider.CallContextFunc
	// ExpectedNode implements provider.Provider. Default: it returns nil, nothing is certain.
	ExpectedNode func(provider.Spec) *corev1.Node
	// Market returns the market of a request, whose arguments may not be rendered yet, or
	// an empty text if it is not known yet. Default: the cloud has only one market.
	Market func(provider.Spec) string
}

// Provider is a provider.Provider of the VMs of a cloud. All its state is in one table, with
// an entry for each instance. Five kinds of goroutines work on it:
//
//   - Workers launch the VMs of requests (launch.go).
//   - One goroutine terminates VMs (terminate.go).
//   - One goroutine removes the userdata of VMs, if the API can (userdata.go).
//   - One goroutine lists the VMs and confirms which are missing (poll.go).
//   - Callers add requests and read (create.go).
//
// The table is never locked during a call.
type Provider struct {
	api     API
	options Options
	limits  Limits

	reads, writes *budget
	// launches has the ids of the requests to work on.
	launches workqueue.TypedRateLimitingInterface[string]
	// poll, terminate and clean wake the goroutines of pollRegularly, terminateDue and
	// removeUserdataDue.
	poll, terminate, clean signal
	synced                 chan struct{}
	// changed and failed are the arguments of Run.
	changed func(instance.GroupKey)
	failed  provider.FailureFunc

	// mu guards the fields below.
	mu sync.Mutex
	// started is when Run began.
	started time.Time
	table   table
	// former has the instances that another process may have requested, until their VMs
	// are found or certainly do not exist.
	former map[string]instance.VM
	// renewed has the instances whose launch needs a new request. Their VMs may exist if the former
	// request is uncertain.
	renewed map[string]entry
	// gone has the machines that are missing, until they are terminated by their ids once.
	gone map[string]VM
	// emptySince is when lists began to show none of the known VMs.
	emptySince time.Time
	// launchEnds is when calls of Launch have ended since the last list, by instance id.
	launchEnds map[string]time.Time
	rejections rejections
	// tokens counts the tokens that a rejected request has used up.
	tokens map[string]usedTokens
	// rooms has the known rooms by subnet.
	rooms map[string]room
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Expecter = (*Provider)(nil)
)

// New returns a provider of the VMs of api.
func New(api API, o Options) *Provider {
	limits := api.Limits()
	return &Provider{
		api:     api,
		options: o,
		limits:  limits,
		reads:   newBudget(limits.Reads),
		writes:  newBudget(limits.Writes),
		launches: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetryDelay, maxRetryDelay)),
		poll:       newSignal(),
		terminate:  newSignal(),
		clean:      newSignal(),
		synced:     make(chan struct{}),
		table:      table{},
		former:     map[string]instance.VM{},
		renewed:    map[string]entry{},
		gone:       map[string]VM{},
		launchEnds: map[string]time.Time{},
		tokens:     map[string]usedTokens{},
		rooms:      map[string]room{},
	}
}

// Run follows the VMs and carries out requests until ctx is done.
func (p *Provider) Run(ctx context.Context, changed func(instance.GroupKey), failed provider.FailureFunc) error {
	defer p.launches.ShutDown()
	p.changed, p.failed = changed, failed
	p.mu.Lock()
	p.started = time.Now()
	p.mu.Unlock()
	if !p.sync(ctx) {
		return nil
	}
	close(p.synced)
	for _, group := range p.Groups() {
		changed(group)
	}

	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { p.pollRegularly(ctx) })
	running.Go(func() { p.terminateDue(ctx) })
	if remover, ok := p.api.(UserdataRemover); ok {
		running.Go(func() { p.removeUserdataDue(ctx, remover) })
	}
	for range max(1, p.limits.Launches) {
		running.Go(func() {
			for p.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	p.launches.ShutDown()
	return nil
}

// Synced is closed when all VMs are known.
func (p *Provider) Synced() <-chan struct{} { return p.synced }

// Get returns an instance that was requested or whose VM is known.
func (p *Provider) Get(id string) (instance.VM, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, known := p.table[id]
	if !known {
		return instance.VM{}, false
	}
	return e.instanceVM(), true
}

// List returns the instances of a group.
func (p *Provider) List(group instance.GroupKey) []instance.VM {
	p.mu.Lock()
	defer p.mu.Unlock()
	var vms []instance.VM
	for _, e := range p.table {
		if e.group == group {
			vms = append(vms, e.instanceVM())
		}
	}
	return vms
}

// Groups returns the groups of all instances, including instances that are being deleted.
func (p *Provider) Groups() []instance.GroupKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	groups := map[instance.GroupKey]struct{}{}
	for _, e := range p.table {
		groups[e.group] = struct{}{}
	}
	return slices.Collect(maps.Keys(groups))
}

// ExpectedNode returns the Node of Options.ExpectedNode, or nil without that function.
func (p *Provider) ExpectedNode(spec provider.Spec) *corev1.Node {
	if p.options.ExpectedNode == nil {
		return nil
	}
	return p.options.ExpectedNode(spec)
}

// reportFailure logs and reports an error of an instance. If the call was not made, and is
// repeated soon, it only logs.
func (p *Provider) reportFailure(ctx context.Context, group instance.GroupKey, id string, err error) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "instance", id, "tenant", group.Tenant, "group", group.Group)
	if errors.Is(err, ErrThrottled) || errors.Is(err, errNotLeading) {
		logger.V(2).Info("Postponed a call for an instance", "reason", err)
		return
	}
	logger.Error(err, "Failed to call the cloud for an instance")
	p.failed(group, id, err)
}

// signal wakes one goroutine. Several signals before it wakes count as one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}
