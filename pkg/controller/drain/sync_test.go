// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errNotFound = status.Error(codes.NotFound, "no such instance")

func TestDrainEvictsWaitsAndAcknowledges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newDaemonSet(), newPod("web-0", "n1"), newPod("web-1", "n1"), newAgent("agent-0", "n1"), newPod("other", "n2"))
		w.tell("n1", time.Now().Add(time.Minute))
		synctest.Wait()
		if got := w.cordoned("n1"); got != "ours" {
			t.Errorf("Node is cordoned: %s", got)
		}
		if draining, blocked, _ := w.controller.Summary("a", "workers"); draining != 1 || blocked != 0 {
			t.Errorf("%d drains and %d blocked", draining, blocked)
		}
		after(4 * time.Second)
		if got := w.acknowledged(); len(got) != 0 {
			t.Errorf("acknowledged %v while Pods end", got)
		}
		after(4 * time.Second)
		if got := w.acknowledged(); !slices.Equal(got, []string{"i-n1"}) {
			t.Errorf("acknowledged %v", got)
		}
		if n := w.count("create pods/eviction"); n != 2 {
			t.Errorf("%d evictions", n)
		}
		if draining, _, _ := w.controller.Summary("a", "workers"); draining != 0 {
			t.Errorf("%d drains after the acknowledgement", draining)
		}
	})
}
