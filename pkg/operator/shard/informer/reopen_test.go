// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"testing"
	"time"

	"nstance.dev/operator/pkg/operator/shard"
)

// A server may send nothing more to a client when another one has connected.
func TestWatchOfInstancesIsOpenedAgain(t *testing.T) {
	p := &peer{drains: drains("i1")}
	withWatcher(t, p, func(t *testing.T, w *watcher) {
		<-time.After(3 * time.Second)
		w.expect("at first", "i1 pending_deletion", "settled true")
		p.change(func() { p.drains = drains("i2") })
		session := w.Session("a")
		<-time.After(11*time.Minute + 3*time.Second)
		w.expect("after 11 minutes", "settled false", "i2 pending_deletion", "i1 removed", "settled true")
		if w.Session("a") <= session {
			t.Error("the session is the same")
		}
		p.instances <- event("i2", shard.Deleted)
		w.expect("from the other watch", "i2 deleted")
		<-time.After(24 * time.Hour)
		p.change(func() {
			if p.instanceWatches < 24*6-15 || p.instanceWatches > 24*6+15 {
				t.Errorf("%d watches in a day, want one every 10 minutes", p.instanceWatches)
			}
			if p.mostInstanceWatches != 2 || p.openInstanceWatches != 1 {
				t.Errorf("at most %d watches were open at a time, and %d are, want the next before the last is closed", p.mostInstanceWatches, p.openInstanceWatches)
			}
			if p.overlap != 2*time.Second {
				t.Errorf("two watches were open for %s", p.overlap)
			}
		})
	})
}
