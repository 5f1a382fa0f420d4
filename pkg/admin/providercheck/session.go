// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// session is a running provider. It is independent of earlier sessions, like a new process of
// a server.
type session struct {
	provider.Provider
	// changes holds an element after a change or a failure.
	changes chan struct{}
	cancel  context.CancelFunc
	// ended is closed when the provider has stopped with err.
	ended chan struct{}
	err   error

	// mu guards failures, which has the errors by instance id.
	mu       sync.Mutex
	failures map[string][]error
}

// start runs a provider and returns when it has listed its instances. The provider does not
// stop when ctx is done, because it is needed to clean up.
func (t *target) start(ctx context.Context) (*session, error) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p, err := t.config.Shard.Infra.Options.NewProvider(t.shard, context.WithCancel)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &session{Provider: p, changes: make(chan struct{}, 1), cancel: cancel, ended: make(chan struct{}), failures: map[string][]error{}}
	go func() {
		defer close(s.ended)
		s.err = p.Run(running, func(instance.GroupKey) { s.signal() }, s.failed)
	}()
	select {
	case <-p.Synced():
		return s, nil
	case <-s.ended:
		return nil, s.stopped()
	case <-ctx.Done():
		s.stop()
		return nil, errors.Join(errors.New("the instances could not be listed, the log says why"), context.Cause(ctx))
	}
}

func (s *session) stop() {
	s.cancel()
	<-s.ended
}

// stopped returns an error with the reason why the provider has stopped.
func (s *session) stopped() error {
	if s.err == nil {
		return errors.New("the provider has stopped")
	}
	return fmt.Errorf("the provider has stopped: %w", s.err)
}

func (s *session) signal() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// failed is the provider.FailureFunc of the session.
func (s *session) failed(_ instance.GroupKey, id string, err error) {
	s.mu.Lock()
	s.failures[id] = append(s.failures[id], err)
	s.mu.Unlock()
	s.signal()
}

// failuresOf returns how many requests for an instance have failed, and the last error.
func (s *session) failuresOf(id string) (count int, last error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := s.failures[id]
	if len(errs) == 0 {
		return 0, nil
	}
	return len(errs), errs[len(errs)-1]
}

// await waits until done returns true or an error. It calls done again after each change.
// If ctx is done, the error includes the last failure of the instance.
func (s *session) await(ctx context.Context, id string, done func() (bool, error)) error {
	for {
		if finished, err := done(); finished || err != nil {
			return err
		}
		select {
		case <-s.changes:
		case <-s.ended:
			return s.stopped()
		case <-ctx.Done():
			_, last := s.failuresOf(id)
			return errors.Join(context.Cause(ctx), last)
		}
	}
}

// instances returns the instances of checks in the order of their ids. If the provider lists
// instances of other groups, it does not distinguish clusters and shards. Then the error
// names the group, and nothing must be changed.
func (s *session) instances() ([]instance.VM, error) {
	for _, group := range s.Groups() {
		if group != checkGroup {
			return nil, fmt.Errorf("the provider lists instances of group %s, which no check has created: it does not distinguish "+
				"clusters and shards, so a check is not possible", group)
		}
	}
	list := s.List(checkGroup)
	slices.SortFunc(list, func(a, b instance.VM) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// remove deletes instances and waits until the provider does not know them any more. It returns
// the instances that the provider has known and does not know any more, also with an error.
func (s *session) remove(ctx context.Context, ids []string) (gone []string, err error) {
	requested := map[string]bool{}
	defer func() {
		for _, id := range ids {
			if _, known := s.Get(id); requested[id] && !known {
				gone = append(gone, id)
			}
		}
	}()
	for _, id := range ids {
		_, before := s.Get(id)
		if err := s.Delete(ctx, id); err != nil {
			return nil, err
		}
		_, after := s.Get(id)
		requested[id] = before || after
	}
	for _, id := range ids {
		err := s.await(ctx, id, func() (bool, error) {
			_, known := s.Get(id)
			return !known, nil
		})
		if err != nil {
			return nil, fmt.Errorf("instance %s is not deleted: %w", id, err)
		}
	}
	return nil, nil
}
