// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/wire"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// noticeHandler implements handler for the cache of notices.
type noticeHandler struct{ shard.NoticeHandler }

func (h noticeHandler) keyChanged(shard, id string) {
	if h.OnInstance != nil {
		h.OnInstance(shard, id)
	}
}

func (h noticeHandler) shardChanged(shard string) {
	if h.OnShard != nil {
		h.OnShard(shard)
	}
}

// Notices is the cache of the deletion notices of all shards that are being served. Its
// methods are safe for concurrent use.
//
// Notices stay while the watch of their shard is not open. The notice of a drain is removed if
// the snapshot of a later watch does not contain the drain, because it was withdrawn. Any
// other notice expires about 10 minutes after it was received. All notices of a shard are
// removed when the shard is removed from the configuration.
type Notices struct {
	shards[*noticeCache, noticeHandler]
	timing timing
	// sequence numbers the openings of watches and the announcements of drains of all shards,
	// so that a number is never reused when a shard or an instance is added again. The lock of
	// shards guards it.
	sequence int64
}

// NewNotices returns an empty cache. Serve fills it.
func NewNotices() *Notices {
	return &Notices{
		shards: shards[*noticeCache, noticeHandler]{newCache: func(string) *noticeCache { return newNoticeCache() }, caches: map[string]*noticeCache{}},
		timing: defaultTiming,
	}
}

// AddHandler registers handler. Handlers are called in the order of their registration. They
// must be added before the first Serve, because they are not called for notices that are
// already in the cache.
func (n *Notices) AddHandler(handler shard.NoticeHandler) {
	n.addHandler(noticeHandler{handler})
}

// Get returns the last notice of an instance, and whether the cache has a notice.
func (n *Notices) Get(shardID, id string) (shard.DeletionNotice, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return shard.DeletionNotice{}, false
	}
	cached, ok := c.byID[id]
	return cached.DeletionNotice, ok
}

// List returns the last notice of each instance of a shard, sorted by instance id.
func (n *Notices) List(shardID string) []shard.DeletionNotice {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return nil
	}
	list := make([]shard.DeletionNotice, 0, len(c.byID))
	for _, cached := range c.byID {
		list = append(list, cached.DeletionNotice)
	}
	slices.SortFunc(list, func(a, b shard.DeletionNotice) int { return strings.Compare(a.InstanceID, b.InstanceID) })
	return list
}

// Settled reports whether the watch of a shard is open and its snapshot, which contains all
// drains at the time of the opening, is complete. Only then does a missing notice mean that an
// instance is not being drained. A server without WatchInstances never settles.
func (n *Notices) Settled(shardID string) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	return ok && c.settled
}

// Session returns a number that grows each time the watch of a shard was opened and has
// settled; 0 before that. The server reports a deletion once, to the open watches. An instance
// that was queried during one session must therefore be queried again in the next session, and
// not before.
func (n *Notices) Session(shardID string) int64 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c, ok := n.caches[shardID]
	if !ok {
		return 0
	}
	return c.session
}

// next returns the next number of sequence. mu must be locked.
func (n *Notices) next() int64 {
	n.sequence++
	return n.sequence
}

// Serve updates the cache of a shard until ctx is done, and returns when all its goroutines
// have returned. A shard may have only one Serve at a time. It may run at the same time as
// Groups.Serve, with the same client: the events of a server that names no shard are ignored
// until Groups.Serve has verified it. The logger of ctx should have the name of the shard.
//
// The notices stay when Serve returns, unless the cause is shard.ErrRemoved: then they are
// dropped, and the handlers are called for each notice.
func (n *Notices) Serve(ctx context.Context, shardID string, client nstancev1.OperatorServiceClient) {
	n.start(shardID)
	r := &noticeReader{notices: n, shard: shardID, client: client, settleTimer: time.NewTimer(n.timing.settleQuiet)}
	defer r.settleTimer.Stop()
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(ctx) })
	r.settleAndExpire(ctx)
	watching.Wait()
	n.stop(shardID, errors.Is(context.Cause(ctx), shard.ErrRemoved))
}

// noticeReader has the state of one Serve.
type noticeReader struct {
	notices *Notices
	shard   string
	client  nstancev1.OperatorServiceClient
	// settleTimer fires when the snapshot may be complete.
	settleTimer *time.Timer
}

// watch watches instances until ctx is done, and puts the events into the cache.
func (r *noticeReader) watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	watch := stream[nstancev1.InstanceEvent]{
		open:       r.client.WatchInstances,
		unverified: func() {},
		opened: func() {
			r.update(func(c *noticeCache) []string {
				c.watchOpened(r.notices.next(), time.Now())
				return nil
			})
			r.settleTimer.Reset(r.notices.timing.settleQuiet)
		},
		received: func(event *nstancev1.InstanceEvent) error { return r.apply(ctx, wire.Notice(event)) },
		lost: func(err error) time.Duration {
			logger.Info("Lost the watch of instances", "err", err)
			r.update(func(c *noticeCache) []string {
				c.watchLost()
				return nil
			})
			if status.Code(err) == codes.Unimplemented {
				return r.notices.timing.unimplementedDelay
			}
			return 0
		},
		reopenInterval: r.notices.timing.reopenInterval,
		overlap:        r.notices.timing.settleQuiet,
	}
	watch.keepOpen(ctx, r.notices.timing)
}

// apply puts a notice into the cache. The error is a *shard.LimitError.
func (r *noticeReader) apply(ctx context.Context, notice shard.DeletionNotice) (err error) {
	if err := checkNotice(notice); err != nil {
		return err
	}
	switch {
	case notice.InstanceID == "":
		klog.FromContext(ctx).Info("Ignored an event without an instance id", "state", notice.State, "group", notice.Group)
		return nil
	case notice.State != shard.Draining && notice.State != shard.Deleting && notice.State != shard.Deleted:
		klog.FromContext(ctx).Info("Ignored an instance event of unknown state", "state", notice.State, "instance", notice.InstanceID)
		return nil
	}
	r.update(func(c *noticeCache) (changed []string) {
		if err = c.fits(notice); err == nil {
			changed = c.put(notice, r.notices.next(), time.Now())
		}
		return changed
	})
	return err
}

// maxAddresses is the maximum number of IP addresses of an instance.
const maxAddresses = 64

// checkNotice returns a *shard.LimitError if a value of a notice is too long.
func checkNotice(notice shard.DeletionNotice) error {
	if err := shard.Exceeds(shard.LimitString, "addresses of an instance", len(notice.Addresses), maxAddresses); err != nil {
		return err
	}
	for _, value := range append([]string{notice.InstanceID, notice.ProviderID, notice.Group, string(notice.State)}, notice.Addresses...) {
		if err := shard.Exceeds(shard.LimitString, "bytes in a value of a notice", len(value), shard.MaxString); err != nil {
			return err
		}
	}
	return nil
}

// settleAndExpire settles the watch when its snapshot is complete, and removes expired
// notices. It does not block the watch.
func (r *noticeReader) settleAndExpire(ctx context.Context) {
	timing := r.notices.timing
	expire := time.NewTicker(timing.retention / 10)
	defer expire.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.settleTimer.C:
			r.settle(ctx)
		case <-expire.C:
			r.update(func(c *noticeCache) []string { return c.expire(time.Now().Add(-timing.retention)) })
		}
	}
}

// settle settles the watch if its snapshot is complete, and otherwise resets the timer. It
// first checks that the server responds: if the server hangs or packets are lost, the silence
// must not be taken for the withdrawal of all drains.
func (r *noticeReader) settle(ctx context.Context) {
	opening, wait := r.nextSettle()
	if opening == 0 {
		return
	}
	if wait > 0 {
		r.settleTimer.Reset(wait)
		return
	}
	if !r.responds(ctx) {
		r.settleTimer.Reset(r.notices.timing.settleQuiet)
		return
	}
	var withdrawn []string
	r.update(func(c *noticeCache) []string {
		// Since the check started, events may have been received or a new watch may
		// have been opened.
		if c.open && c.opening == opening && !time.Now().Before(c.settlesAt(r.notices.timing)) {
			withdrawn = c.settle()
		}
		return withdrawn
	})
	if len(withdrawn) > 0 {
		klog.FromContext(ctx).Info("Dropped drains that the shard no longer reports", "instances", withdrawn)
	}
	if opening, wait := r.nextSettle(); opening != 0 {
		r.settleTimer.Reset(wait)
	}
}

// nextSettle returns the opening that has not settled yet, 0 if it has settled, and the time
// until its snapshot may be complete.
func (r *noticeReader) nextSettle() (opening int64, wait time.Duration) {
	r.notices.mu.RLock()
	defer r.notices.mu.RUnlock()
	c := r.notices.caches[r.shard]
	if !c.open || c.settled {
		return 0, 0
	}
	return c.opening, time.Until(c.settlesAt(r.notices.timing))
}

// responds calls a cheap method of the server. It returns true for any reply, even an error.
func (r *noticeReader) responds(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, r.notices.timing.callTimeout)
	defer cancel()
	_, err := r.client.GetConfigStatus(limited, &emptypb.Empty{})
	return ctx.Err() == nil && !shard.IsUnreachable(err)
}

func (r *noticeReader) update(change func(*noticeCache) []string) {
	r.notices.update(r.shard, change)
}
