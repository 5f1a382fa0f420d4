// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

const (
	// readTimeout bounds a call that only reads.
	readTimeout = time.Minute
	// minRetryDelay and maxRetryDelay bound the backoff after a failed call.
	minRetryDelay = 200 * time.Millisecond
	maxRetryDelay = 30 * time.Second
)

// errNotLeading means that a call was not made, because only the leader may make it.
var errNotLeading = errors.New("this server does not lead the shard")

// Options are the parts of a Provider that differ by cloud.
type Options struct {
	// CallContext returns the context of each call that changes something, so that a
	// server that no longer leads makes none. Default: the context of Run.
	CallContext provider.CallContextFunc
	// ExpectedNode is that of provider.Provider. Default: nothing is certain.
	ExpectedNode func(provider.Spec) *corev1.Node
	// Market returns the market of a request, whose arguments may not be rendered yet, or
	// an empty text if it is not known. Default: there is only one.
	Market func(provider.Spec) string
}

// Provider is a provider.Provider of the machines of a cloud. All its state is in one
// table, with an entry for each instance. Four kinds of goroutines work on it:
//
//   - Workers launch the machines of requests (launch.go).
//   - One terminates machines (terminate.go).
//   - One lists the machines and confirms which are missing (poll.go).
//   - Callers add requests and read (request.go).
//
// The table is never locked during a call.
type Provider struct {
	api     API
	options Options
	limits  Limits

	reads, writes *budget
	// launches are the ids of the requests to work on.
	launches workqueue.TypedRateLimitingInterface[string]
	// poll and terminate wake their goroutines.
	poll, terminate signal
	synced          chan struct{}
	// changed and failed are those of Run.
	changed func(instance.GroupKey)
	failed  provider.FailureFunc

	// mu guards the fields below.
	mu sync.Mutex
	// started is when Run began.
	started time.Time
	table   table
	// former are the instances that another process may have requested, until their machines
	// are found or certainly do not exist.
	former map[string]instance.VM
	// renewed are the instances whose launch is in progress and needs a new request.
	renewed map[string]instance.VM
	// emptySince is when lists began to show none of the machines that were known.
	emptySince time.Time
	// launchEnds is when calls of Launch have ended since the last list.
	launchEnds map[string]time.Time
	rejections rejections
	// tokens counts the tokens that a rejected request has used up.
	tokens map[string]usedTokens
	// rooms by subnet.
	rooms map[string]room
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Expecter = (*Provider)(nil)
)

// New returns a provider of the machines of api.
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
		synced:     make(chan struct{}),
		table:      table{},
		former:     map[string]instance.VM{},
		renewed:    map[string]instance.VM{},
		launchEnds: map[string]time.Time{},
		tokens:     map[string]usedTokens{},
		rooms:      map[string]room{},
	}
}

// Run follows the machines and carries out requests until ctx is done.
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

// Synced is closed when all machines are known.
func (p *Provider) Synced() <-chan struct{} { return p.synced }

// read makes a call that only reads.
func (p *Provider) read(ctx context.Context, call func(context.Context) error) error {
	if err := p.reads.wait(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := call(ctx)
	p.reads.report(err)
	return err
}

// write makes a call that changes something, if this server leads.
func (p *Provider) write(ctx context.Context, call func(context.Context) error) error {
	if err := p.writes.wait(ctx); err != nil {
		return err
	}
	if p.options.CallContext != nil {
		callCtx, cancel := p.options.CallContext(ctx)
		defer cancel()
		if err := deadline.Check(callCtx); err != nil {
			return errors.Join(errNotLeading, err)
		}
		ctx = callCtx
	}
	err := call(ctx)
	p.writes.report(err)
	return err
}

// reportFailure logs an error of an instance and reports it, unless the call was not made
// and is repeated soon.
func (p *Provider) reportFailure(ctx context.Context, group instance.GroupKey, id string, err error) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "instance", id, "tenant", group.Tenant, "group", group.Group)
	if errors.Is(err, ErrThrottled) || errors.Is(err, errNotLeading) {
		logger.V(2).Info("A call for an instance waits", "reason", err)
		return
	}
	logger.Error(err, "A call for an instance failed")
	p.failed(group, id, err)
}

// signal wakes one goroutine. Signals that it has not seen yet are one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}
