// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"context"
	"crypto"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// workers is the number of agents for which files are made concurrently.
	workers = 8
	// minBackoff and maxBackoff bound the delay after files could not be made.
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
)

// Groups has the groups of the shard.
type Groups interface {
	Get(key instance.GroupKey) (*groups.Group, bool)
	Config() *config.Config
}

// Instances has the instances by id. It may also return deleted instances for a while.
type Instances interface {
	Get(id string) (instance.Instance, bool)
}

// Options configure a Pusher. All fields are mandatory.
type Options struct {
	Groups    Groups
	Instances Instances
	Renderer  *Renderer
	// LastReport returns the latest report of an instance, or nil.
	LastReport func(id string) *nstancev1.HealthReportRequest
	// Failed is called when the files of an instance cannot be made or used.
	Failed provider.FailureFunc
}

// Pusher sends files to agents whose reports show that they lack some. It is safe for
// concurrent use.
type Pusher struct {
	Options
	queue workqueue.TypedRateLimitingInterface[string]

	mu       sync.Mutex
	agents   map[string]*agent
	contents contentCache
	// hashes has the runtime config hashes of groups when they changed last.
	hashes map[instance.GroupKey]string
}

// New returns a Pusher, which sends in Run.
func New(o Options) *Pusher {
	return &Pusher{
		Options: o,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff)),
		agents:   map[string]*agent{},
		contents: newContentCache(),
		hashes:   map[instance.GroupKey]string{},
	}
}

// Run makes files and sends them until ctx is done.
func (p *Pusher) Run(ctx context.Context) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for p.work(ctx) {
			}
		})
	}
	running.Go(func() { p.followContents(ctx) })
	<-ctx.Done()
	p.queue.ShutDown()
	running.Wait()
}

func (p *Pusher) agent(id string) *agent {
	a, found := p.agents[id]
	if !found {
		a = &agent{public: map[string]crypto.PublicKey{}}
		p.agents[id] = a
	}
	return a
}

// ReceiveFiles begins a stream of files to the agent of an instance. It replaces the agent's
// previous stream. The caller calls end when the stream has ended.
func (p *Pusher) ReceiveFiles(id string) (s *Session[*Patch], end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s = newSession[*Patch]()
	a := p.agent(id)
	replace(&a.files, s)
	// Patches that were sent on another stream may be lost.
	a.count = 0
	if report := p.LastReport(id); report != nil {
		a.report(report)
	}
	p.queue.Add(id)
	return s, func() { p.end(id, func(a *agent) { endSession(&a.files, s) }) }
}

// ReceiveKeyRequests begins a stream of names of keys. It is like ReceiveFiles.
func (p *Pusher) ReceiveKeyRequests(id string) (s *Session[[]string], end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s = newSession[[]string]()
	a := p.agent(id)
	replace(&a.keys, s)
	a.keysAt = time.Time{}
	p.queue.Add(id)
	return s, func() { p.end(id, func(a *agent) { endSession(&a.keys, s) }) }
}

func endSession[T any](present **Session[T], s *Session[T]) {
	if *present == s {
		*present = nil
	}
}

// end ends a session. An agent without sessions is forgotten: it will send its keys and its
// status again.
func (p *Pusher) end(id string, do func(*agent)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, found := p.agents[id]
	if !found {
		return
	}
	if do(a); a.files == nil && a.keys == nil {
		delete(p.agents, id)
	}
}

// Reported records the report of an instance.
func (p *Pusher) Reported(id string, report *nstancev1.HealthReportRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, found := p.agents[id]; found {
		a.report(report)
		p.queue.Add(id)
	}
}

// SubmitKeys records public keys of an instance, and the reasons why it has no key that can be
// used for other names. It ignores keys that no file needs.
func (p *Pusher) SubmitKeys(i *instance.Instance, keys map[string]crypto.PublicKey, problems map[string]string) {
	group, found := p.groupOf(i)
	if !found {
		return
	}
	needed := keysOf(group)
	p.mu.Lock()
	defer p.mu.Unlock()
	a, found := p.agents[i.ID]
	if !found {
		return
	}
	for name, key := range keys {
		if slices.Contains(needed, name) {
			a.public[name] = key
		}
	}
	a.problems = map[string]string{}
	for name, problem := range problems {
		if slices.Contains(needed, name) {
			a.problems[name] = cut(problem)
		}
	}
	p.queue.Add(i.ID)
}

// GroupsChanged sends files to the agents of groups whose configuration has changed, and
// does not wait for their reports.
func (p *Pusher) GroupsChanged(keys ...instance.GroupKey) {
	changed := false
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		group, found := p.Groups.Get(key)
		if found && p.hashes[key] != group.RuntimeConfigHash {
			p.hashes[key] = group.RuntimeConfigHash
			changed = true
		}
	}
	if !changed {
		return
	}
	for id := range p.agents {
		p.queue.Add(id)
	}
}

// groupOf returns the group of an instance with the settings of the instance.
func (p *Pusher) groupOf(i *instance.Instance) (*groups.Group, bool) {
	group, found := p.Groups.Get(i.Key())
	if !found {
		return nil, false
	}
	effective, err := provision.Effective(p.Groups.Config(), group, &i.Record)
	return effective, err == nil
}

// work sends files to one agent if it needs them. It returns false when the queue is shut
// down.
func (p *Pusher) work(ctx context.Context) bool {
	id, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(id)
	if ctx.Err() != nil {
		return false
	}
	i, found := p.Instances.Get(id)
	if !found || !i.DeletedAt.IsZero() {
		p.queue.Forget(id)
		return true
	}
	if err := p.push(ctx, &i); err != nil && ctx.Err() == nil {
		err = fmt.Errorf("files of instance %s: %w", id, err)
		klog.FromContext(ctx).Error(err, "Failed to make files, will retry", "instance", id)
		p.Failed(i.Key(), id, err)
		p.queue.AddRateLimited(id)
		return true
	}
	p.queue.Forget(id)
	return true
}

// push makes the files of an instance and passes them on to its stream, unless its agent
// has them, or has to send keys first.
func (p *Pusher) push(ctx context.Context, i *instance.Instance) error {
	group, found := p.groupOf(i)
	if !found {
		return nil
	}
	session, available, keys := p.prepare(i, group)
	if session == nil {
		return nil
	}
	patch, err := p.Renderer.patch(ctx, available, i, keys)
	if err != nil {
		return err
	}
	patch.Partial = available != group
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learn(patch.digests)
	a, found := p.agents[i.ID]
	if !found || a.files != session {
		return nil // the next stream makes the patch again
	}
	if withoutContents(a.sent) != withoutContents(patch.ConfigHash) {
		a.count = 0
	}
	a.sent, a.sentAt = patch.ConfigHash, time.Now()
	a.count++
	session.put(patch)
	klog.FromContext(ctx).Info("Sending files to an agent", "instance", i.ID, "files", len(patch.Files), "configHash", patch.ConfigHash, "attempt", a.count)
	return nil
}

// prepare returns the stream for the files of an instance, the group with the files to send, and
// the keys of its agent; nil if no files have to be sent now. It requests missing keys. After a
// while it does not wait for them, because the other files need none.
func (p *Pusher) prepare(i *instance.Instance, group *groups.Group) (*Session[*Patch], *groups.Group, map[string]crypto.PublicKey) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	a, found := p.agents[i.ID]
	if !found {
		return nil, nil, nil
	}
	missing := a.missing(keysOf(group))
	if len(missing) == 0 {
		a.missingSince, a.missingReported = time.Time{}, ""
	} else {
		if a.missingSince.IsZero() {
			a.missingSince = now
		}
		waited := now.Sub(a.missingSince)
		if waited < keyRetry {
			p.queue.AddAfter(i.ID, keyRetry-waited)
		} else if waited < keyReport {
			p.queue.AddAfter(i.ID, keyReport-waited)
		}
		if a.keys != nil && now.Sub(a.keysAt) >= keyRetry {
			a.keysAt = now
			a.keys.put(missing)
			p.queue.AddAfter(i.ID, keyRetry)
		}
		available, reasons := a.available(group, missing)
		if waited >= keyReport && a.missingReported != reasons {
			a.missingReported = reasons
			p.Failed(i.Key(), i.ID, fmt.Errorf("files of instance %s cannot be made: %s", i.ID, reasons))
		}
		if waited < keyRetry || len(available.Files) == 0 {
			return nil, nil, nil
		}
		group = available
	}
	if a.files == nil || !a.reported {
		return nil, nil, nil
	}
	p.reportRefused(i, group, a)
	if !a.outdated(p.Groups.Config(), group, &p.contents, now) {
		a.count = 0
		return nil, nil, nil
	}
	if at := a.retryAt(group.RuntimeConfigHash); now.Before(at) {
		p.queue.AddAfter(i.ID, at.Sub(now))
		return nil, nil, nil
	}
	// Errors are reported again if the next patch is refused too.
	a.refused = nil
	public := make(map[string]crypto.PublicKey, len(a.public))
	for name, key := range a.public {
		public[name] = key
	}
	return a.files, group, public
}

// reportRefused reports the files that an agent could not use, if its latest report says so
// and they were not reported since the patch before.
func (p *Pusher) reportRefused(i *instance.Instance, group *groups.Group, a *agent) {
	reasons := a.errors(group)
	if maps.Equal(reasons, a.refused) {
		return
	}
	a.refused = reasons
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		p.Failed(i.Key(), i.ID, fmt.Errorf("file %s of instance %s: %s", name, i.ID, reasons[name]))
	}
}

// Session is one stream to an agent. It has at most one unsent value, the latest.
type Session[T any] struct {
	// Next has the value to send next.
	Next chan T
	// Replaced is closed when the agent has another stream of this kind.
	Replaced chan struct{}
}

func newSession[T any]() *Session[T] {
	return &Session[T]{Next: make(chan T, 1), Replaced: make(chan struct{})}
}

// put replaces the unsent value. The caller holds the lock of the Pusher, and so is the only
// sender.
func (s *Session[T]) put(value T) {
	select {
	case <-s.Next:
	default:
	}
	s.Next <- value
}

// replace makes next the session of an agent instead of the present one, which may be nil.
func replace[T any](present **Session[T], next *Session[T]) {
	if *present != nil {
		close((*present).Replaced)
	}
	*present = next
}
