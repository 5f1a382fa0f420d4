// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// A list that was in progress may have been replied to before the call.
func TestListedSinceNeedsALaterList(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		lists := func() int {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.lists
		}
		before := lists()
		mark := g.Relist("a")
		assert.Equal(t, before+1, lists(), "one more list, at once")
		assert.True(t, g.ListedSince("a", mark))

		block := make(chan struct{})
		p.change(func() { p.blockList = block })
		first := g.Relist("a")
		assert.Equal(t, before+2, lists(), "a list is in progress")
		assert.False(t, g.ListedSince("a", first))
		second := g.Relist("a")
		p.change(func() {
			p.blockList = nil
			p.groups = []*nstancev1.GroupStatus{{Key: "late", Size: 1}}
		})
		g.update("a", func(c *groupCache) []string {
			assert.Zero(t, len(c.groups))
			return nil
		})
		close(block)
		assert.Equal(t, before+3, lists(), "another list after it")
		assert.True(t, g.ListedSince("a", first))
		assert.True(t, g.ListedSince("a", second))
		expectSizes(t, g, "late=1")
	})
}

// A list that failed confirms nothing, and is repeated.
func TestListedSinceNeedsASuccessfulList(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		p.change(func() { p.err = status.Error(codes.Unavailable, "later") })
		mark := g.Relist("a")
		synctest.Wait()
		assert.False(t, g.ListedSince("a", mark))
		p.change(func() { p.err = nil })
		<-time.After(20 * time.Second)
		assert.True(t, g.ListedSince("a", mark))
	})
}

func TestListedSinceOfAShardThatIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &peer{}
		client := p.serve(t)
		g := NewGroups(Options{})
		mark := g.Relist("a")
		assert.False(t, g.ListedSince("a", mark))
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() {
			g.Serve(ctx, "a", client)
			close(served)
		}()
		synctest.Wait()
		assert.True(t, g.ListedSince("a", mark))

		// The lists of the next connection are numbered on.
		cancel()
		<-served
		mark = g.Relist("a")
		assert.False(t, g.ListedSince("a", mark))
		runtest.Start(t, func(ctx context.Context) { g.Serve(ctx, "a", client) })
		synctest.Wait()
		assert.True(t, g.ListedSince("a", mark))
	})
}
