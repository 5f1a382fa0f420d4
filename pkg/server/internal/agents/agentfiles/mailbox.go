// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

// Session is one stream to an agent. It has at most one value that was not sent yet, the
// latest.
type Session[T any] struct {
	// Next has the value to send next.
	Next chan T
	// Replaced is closed when the agent has another stream of this kind.
	Replaced chan struct{}
}

func newSession[T any]() *Session[T] {
	return &Session[T]{Next: make(chan T, 1), Replaced: make(chan struct{})}
}

// put replaces the value that was not sent yet. The caller holds the lock of the Pusher,
// which makes it the only sender.
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
