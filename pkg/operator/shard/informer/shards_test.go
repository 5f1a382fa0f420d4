// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/shard"
)

func TestLinkReportsTheWatchOfGroups(t *testing.T) {
	p := &peer{}
	withPeer(t, p, func(t *testing.T, g *Groups, _ func() []string) {
		start := time.Now()
		assert.Zero(t, g.Link("b"), "a shard that is not served")
		assert.Equal(t, shard.Link{LastList: start, LastMessage: start}, g.Link("a"), "at first")

		time.Sleep(10 * time.Second)
		p.events <- upsert("workers", 1)
		synctest.Wait()
		event := time.Now()
		assert.Equal(t, shard.Link{LastList: start, LastMessage: event}, g.Link("a"), "after an event")

		time.Sleep(5 * time.Minute)
		if age := time.Since(g.Link("a").LastList); age > 33*time.Second {
			t.Errorf("the groups were listed %s ago", age)
		}
		assert.Equal(t, event, g.Link("a").LastMessage, "lists are no messages of the watch")

		p.events <- nil
		time.Sleep(10 * time.Second)
		synctest.Wait()
		link := g.Link("a")
		assert.Equal(t, 1, link.Reconnects, "the watch was closed once")
		assert.True(t, link.LastMessage.After(event), "the opening counts")
		g.restart("a")
		assert.Equal(t, link, g.Link("a"), "a restart keeps it")
	})
}

func TestLastMessageOfTheWatchOfInstances(t *testing.T) {
	p := &peer{}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		start := time.Now()
		assert.Equal(t, start, w.LastMessage("a"), "the opening counts")
		assert.Zero(t, w.LastMessage("b"), "a shard that is not served")
		<-time.After(10 * time.Second)
		p.instances <- drain("i1")
		synctest.Wait()
		assert.Equal(t, start.Add(10*time.Second), w.LastMessage("a"))
	})
}
