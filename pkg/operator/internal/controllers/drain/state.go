// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/operator/shard"
)

// state is the memory of the controller about a drain while the shard reports its notice. A
// new process without it repeats some reads and no writes.
type state struct {
	// providerIDKey is the key under which byProviderID has the drain. The mutex of the
	// controller guards it.
	providerIDKey string

	// startedAt is when the drain started: as the shard reports, else when it was first
	// observed.
	startedAt time.Time
	reason    string

	mu    sync.Mutex
	watch *podWatch
	// classified are the Pods for which it is known whether they have to leave, leaving the
	// Pods that have to leave.
	classified, leaving sets.Set[types.UID]
	// present are the Pods that had to leave when the Node was first listed after its cordon.
	// Another Pod was created or bound later. presentOn is the Node, empty before.
	present   sets.Set[types.UID]
	presentOn types.UID
	// unreadable are the Pods whose DaemonSets could not be read, and unreadableErr is the
	// error.
	unreadable    sets.Set[types.UID]
	unreadableErr error
	// failure is the failure of the last requests.
	failure failure
	// deletions are the times at which the deletion of Pods was first observed.
	deletions map[types.UID]time.Time
	// ambiguousSince is the time since which several Nodes have the provider id of the
	// instance, zero if they do not.
	ambiguousSince time.Time
	// foreignSince is the time since which the shard may not name the Node, zero if it may.
	foreignSince time.Time
	// emptySince is the time since which no Pod remains that has to leave.
	emptySince time.Time
	// listAfter is the earliest time of the next list of Pods.
	listAfter time.Time
	// announced is the number of the notice that was last acknowledged.
	announced int64
	// acknowledging is set during an acknowledgement, acknowledged after the first.
	acknowledging, acknowledged bool
	// acknowledgeAfter is the earliest time of the next acknowledgement.
	acknowledgeAfter time.Time
	backoff          wait.Backoff
	// expired is set after the deadline was reached, counted after the first outcome.
	expired, counted bool
	// cordoned is set after this process has cordoned the Node, and started after the start was
	// recorded.
	cordoned, started bool
	// blockageReported is set while the blockage was reported by an event.
	blockageReported bool
}

// ensureState returns the state of a drain, and creates it if it does not exist.
func (c *Controller) ensureState(key Key, notice *shard.DeletionNotice) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.states[key]
	if !ok {
		s = &state{startedAt: notice.Since, reason: notice.Reason, backoff: acknowledgementBackoff, deletions: map[types.UID]time.Time{}}
		if s.startedAt.IsZero() {
			s.startedAt = c.clock.Now()
		}
		c.states[key] = s
	}
	c.setProviderID(key, s, providerid.Key(notice.ProviderID))
	return s
}

// getState returns the state of a drain, nil if it does not exist.
func (c *Controller) getState(key Key) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[key]
}

func (c *Controller) removeState(key Key, s *state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.states, key)
	c.setProviderID(key, s, "")
}

// setProviderID changes the key under which byProviderID has a drain; "" removes it.
// mu must be locked.
func (c *Controller) setProviderID(key Key, s *state, providerIDKey string) {
	if s.providerIDKey == providerIDKey {
		return
	}
	if keys := c.byProviderID[s.providerIDKey]; keys.Delete(key).Len() == 0 {
		delete(c.byProviderID, s.providerIDKey)
	}
	s.providerIDKey = providerIDKey
	if providerIDKey == "" {
		return
	}
	if c.byProviderID[providerIDKey] == nil {
		c.byProviderID[providerIDKey] = sets.New[Key]()
	}
	c.byProviderID[providerIDKey].Insert(key)
}

// isAcknowledged reports whether a notice, by its number, was acknowledged.
func (s *state) isAcknowledged(announced int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acknowledged && s.announced >= announced
}

// wasAcknowledged reports whether any notice of the drain was acknowledged.
func (s *state) wasAcknowledged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acknowledged
}

// startAcknowledgement stores that an acknowledgement is being sent.
func (s *state) startAcknowledgement() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acknowledging = true
}

// setAcknowledged stores that a notice was acknowledged, and reports whether the
// acknowledgement is the first outcome of the drain.
func (s *state) setAcknowledged(announced int64) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.counted
	s.counted = true
	s.acknowledged, s.acknowledging, s.announced, s.backoff = true, false, announced, acknowledgementBackoff
	return first
}

// acknowledgementFailed delays the next acknowledgement.
func (s *state) acknowledgementFailed(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acknowledging = false
	s.acknowledgeAfter = now.Add(s.backoff.Step())
}

// acknowledgementDelay returns the delay until the next acknowledgement may be sent, 0 or less
// if it may be sent now.
func (s *state) acknowledgementDelay(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acknowledgeAfter.Sub(now)
}

// isExpired reports whether it was reported that the deadline was reached.
func (s *state) isExpired() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.expired
}

// setExpired stores that the deadline was reached, and reports whether the timeout is the first
// outcome of the drain.
func (s *state) setExpired() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.counted && !s.acknowledging
	s.counted = s.counted || first
	s.expired = true
	return first
}

// isCounted reports whether the acknowledgement or the deadline counts, or will count, the
// outcome of the drain.
func (s *state) isCounted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted || s.acknowledging
}

// setCordoned stores that this process has cordoned the Node.
func (s *state) setCordoned() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cordoned = true
}

// takeStart reports whether the start of the drain has to be recorded, and stores that it was: once, by
// the process that has cordoned the Node.
func (s *state) takeStart() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.cordoned && !s.started
	s.started = s.cordoned
	return first
}

// setBlocked stores whether the drain is blocked, and reports whether an event has to be
// recorded.
func (s *state) setBlocked(blocked bool) (report bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	report = blocked && !s.blockageReported
	s.blockageReported = blocked
	return report
}

// setAmbiguous stores whether several Nodes have the provider id of the instance, and
// returns since when, zero if they do not.
func (s *state) setAmbiguous(ambiguous bool, now time.Time) time.Time {
	return s.setSince(&s.ambiguousSince, ambiguous, now)
}

// setForeign stores whether the shard may not name the Node, and returns since when, zero if it
// may.
func (s *state) setForeign(foreign bool, now time.Time) time.Time {
	return s.setSince(&s.foreignSince, foreign, now)
}

// setSince stores in a field of the state since when something is the case, zero if it is not,
// and returns the new value.
func (s *state) setSince(field *time.Time, is bool, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !is:
		*field = time.Time{}
	case field.IsZero():
		*field = now
	}
	return *field
}

// setEmpty stores whether all Pods that have to leave have left the Node, and
// returns since when, zero if they have not.
func (s *state) setEmpty(empty bool, now time.Time) time.Time {
	return s.setSince(&s.emptySince, empty, now)
}

// startList stores the time of a list of Pods, and returns the Pods that the watch
// shows.
func (s *state) startList(now time.Time) []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listAfter = now.Add(podListPeriod)
	if s.watch == nil {
		return nil
	}
	return s.watch.pods()
}

// stopPodWatch stops the watch of Pods, and removes the facts that were learned from it.
func (s *state) stopPodWatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch != nil {
		s.watch.stop()
	}
	s.watch, s.classified, s.leaving = nil, nil, nil
	s.unreadable, s.unreadableErr = nil, nil
}

// failure is an error of the requests of a drain, and since when they fail. The zero value
// means that the last request has succeeded.
type failure struct {
	since time.Time
	err   error
	// errAt is the time of err.
	errAt time.Time
}

// setFailure stores the error of a request, nil after a success. Once the error has been
// reported, another error replaces it after errorPeriod: the text may differ at each attempt,
// for example by a port number, and each difference is a write of a status.
func (s *state) setFailure(err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.failure = failure{}
	case s.failure.err == nil:
		s.failure = failure{since: now, err: err, errAt: now}
	case now.Sub(s.failure.since) < blockedAfter, now.Sub(s.failure.errAt) >= errorPeriod:
		s.failure.err, s.failure.errAt = err, now
	}
}

// lastingFailure returns the failure if it has lasted for blockedAfter, so that the drain
// counts as blocked, else the zero value.
func (s *state) lastingFailure(now time.Time) failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure.err == nil || now.Sub(s.failure.since) < blockedAfter {
		return failure{}
	}
	return s.failure
}

// failureReportAt returns when a shorter failure will have lasted for blockedAfter, zero if
// there is no such failure.
func (s *state) failureReportAt(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.failure.since.Add(blockedAfter); s.failure.err != nil && now.Before(at) {
		return at
	}
	return time.Time{}
}

// recordResult stores whether the requests of a step fail. A step without requests changes
// nothing.
func (c *Controller) recordResult(s *state, done step, err error, now time.Time) {
	unreadable, watch := s.readErrors()
	switch {
	case err != nil:
		s.setFailure(err, now)
	case done == lookUpNode:
		s.setFailure(c.nodeLookup.failed(), now)
	case unreadable != nil:
		s.setFailure(unreadable, now)
	case done == nothing && watch != nil:
		s.setFailure(watch, now)
	case done != nothing && done != acknowledge:
		s.setFailure(nil, now)
	}
}

// readErrors returns the errors because of which Pods of the Node are not known: of reading
// their DaemonSets, and of opening the watch of Pods.
func (s *state) readErrors() (unreadable, watch error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch != nil && !s.watch.synced() {
		watch = s.watch.failed()
	}
	return s.unreadableErr, watch
}
