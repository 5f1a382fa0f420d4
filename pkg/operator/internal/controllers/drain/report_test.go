// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"nstance.dev/operator/pkg/base/audit/audittest"
)

func TestADrainIsRecordedOnItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.announce("n1", time.Now().Add(time.Minute))
		synctest.Wait()
		h.fakes.ExpectEvents("Normal DrainStarted draining for the deletion of instance i-n1 on shard a, reason scale-down, at the latest at 2000-01-01T00:01:00Z")
		advance(10 * time.Second)
		h.expectAcknowledged("i-n1")
		h.fakes.ExpectEvents("Normal DrainCompleted the Pods have left, and shard a may delete instance i-n1; requestID ID")

		// Neither happens twice.
		h.announce("n1", time.Now().Add(time.Minute))
		advance(10 * time.Second)
		h.expectAcknowledged("i-n1", "i-n1")
		h.fakes.ExpectEvents()
	})
}

// TestAcknowledgementsAreAudited: a notice that is repeated is acknowledged again, which
// changes nothing and has no line.
func TestAcknowledgementsAreAudited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.stop()
		h.log = audittest.NewLog()
		h.start()
		h.announce("n1", time.Now().Add(time.Minute))
		advance(10 * time.Second)
		h.announce("n1", time.Now().Add(time.Minute))
		advance(10 * time.Second)
		h.expectAcknowledged("i-n1", "i-n1")
		h.log.Expect(t, "Audit: acknowledge drain shard=a group=workers instance=i-n1 from=drained to=deleting"+
			" writer=nstance-operator reason=scale-down result=accepted requestID=ID")
	})
}

func TestANewLeaderRecordsNoStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Second)
		h.fakes.Events()
		h.stop()
		h.start()
		advance(10 * time.Second)
		h.fakes.ExpectEvents()
	})
}

func TestADrainWithVolumesIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume, attachment := newVolume("data", "n1")
		h := newHarness(t, newNode("n1"), volume, attachment, withClaim(newPod("db-0", "n1"), "data"))
		h.announce("n1", time.Now().Add(time.Hour))
		advance(volumeTimeout + 10*time.Second)
		h.expectAcknowledged("i-n1")
		assert.Contains(t, h.fakes.Events(), "Normal DrainCompleted the Pods have left, some of their volumes are still attached, and shard a may delete instance i-n1; requestID ID")
	})
}

func TestADrainThatIsNotFinishedInTimeIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(10*time.Second))
		advance(time.Second)
		h.fakes.Events()
		advance(20 * time.Second)
		h.fakes.ExpectEvents("Warning DrainTimedOut the drain was not finished in time, and shard a deletes instance i-n1 with the Pods that are left")
	})
}

// observedRecorder calls a function before each event.
type observedRecorder struct {
	events.EventRecorder
	before func(reason string)
}

// Eventf implements events.EventRecorder.
func (r observedRecorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	r.before(reason)
	r.EventRecorder.Eventf(regarding, related, eventtype, reason, action, note, args...)
}

// All Nodes of a burst of notices are cordoned before the start of a drain is recorded: no event delays a
// cordon. Only the cordons that are in progress may be answered later.
func TestNoEventDelaysTheCordonsOfABurst(t *testing.T) {
	const notices = 100
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		for i := range notices {
			objects = append(objects, newNode(fmt.Sprintf("n%d", i)))
		}
		h := newHarness(t, objects...)
		h.stop()
		var recorded atomic.Int64
		h.fakes.Recorder = observedRecorder{h.fakes.Recorder, func(reason string) {
			if reason != reasonDrainStarted {
				return
			}
			recorded.Add(1)
			if got := h.count("patch nodes"); got <= notices-drainWorkers {
				t.Errorf("%d of %d Nodes are cordoned when the start of a drain is recorded", got, notices)
			}
		}}
		h.start()
		announced := make(chan struct{})
		h.beforePatch = func() { <-announced }
		for i := range notices {
			h.announce(fmt.Sprintf("n%d", i), time.Now().Add(time.Hour))
		}
		close(announced)
		synctest.Wait()
		assert.Equal(t, int64(notices), recorded.Load(), "events")
		assert.Equal(t, notices, h.count("patch nodes"), "cordons")
	})
}

// The start is recorded also if the deadline is reached during the cordon.
func TestTheStartOfAShortDrainIsRecordedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"))
		h.beforePatch = func() { time.Sleep(2 * time.Second) }
		h.announce("n1", time.Now().Add(time.Second))
		advance(10 * time.Second)
		h.fakes.ExpectEvents(
			"Normal DrainStarted draining for the deletion of instance i-n1 on shard a, reason scale-down, at the latest at 2000-01-01T00:00:01Z",
			"Warning DrainTimedOut the drain was not finished in time, and shard a deletes instance i-n1 with the Pods that are left")
	})
}
