// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The requests of one write are compared with each other, in their order.
func TestRevisionsWithinABatch(t *testing.T) {
	b := newBatchTest(t)
	want := func(do call, stale bool) {
		b.call(func() {
			if _, got := errors.AsType[*StaleError](do(t.Context(), b.Store, dynamic)); got != stale {
				t.Errorf("stale is %t, want %t", got, stale)
			}
		})
	}
	want(upsertOf("u", 9, 90), false)
	want(upsertOf("u", 5, 50), true)
	want(deleteOf("u", 5), true)
	want(deleteOf("u", 9), false)
	want(upsertOf("u", 10, 100), true)
	want(upsertOf("v", 1, 10), false)
	want(deleteOf("u", 10), false)
	want(upsertOf("v", 1, 11), false)
	b.next()
	b.finish(nil) // blocks forever if there is a third write
	assert.Equal(t, "11 of v/1", describeGroup(b.Store, dynamic))
	b.wantStored()
}

// A refusal, and a success without effect, that are due to a change that was not stored
// are errors of the storage: the change has not happened.
func TestRefusalsDependOnTheWrite(t *testing.T) {
	failure := errors.New("disk full")
	b := newBatchTest(t)
	other := keyOf(1)
	wantFailure := func(do func() error) {
		b.call(func() {
			if err := do(); !errors.Is(err, failure) {
				t.Errorf("got error %v, want %v", err, failure)
			}
		})
	}
	wantFailure(func() error { return deleteOf("u", 2)(t.Context(), b.Store, dynamic) })
	wantFailure(func() error { return upsertOf("u", 1, 1)(t.Context(), b.Store, dynamic) })
	// The uid is retired for the whole tenant.
	wantFailure(func() error { return upsertOf("u", 1, 1)(t.Context(), b.Store, other) })
	wantFailure(func() error { return deleteOf("u", 2)(t.Context(), b.Store, other) })
	b.next()
	b.finish(failure)
	assert.Nil(t, b.content.retired["default"])

	// The object was not deleted.
	b.calls.Go(func() {
		if err := upsertOf("u", 1, 10)(t.Context(), b.Store, dynamic); err != nil {
			t.Error(err)
		}
	})
	<-b.store.begun
	b.finish(nil)
	assert.Equal(t, "10 of u/1", describeGroup(b.Store, dynamic))
	b.wantStored()
}
