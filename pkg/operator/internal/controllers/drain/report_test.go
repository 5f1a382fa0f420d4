// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

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
