// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// audited is the pool whose audit trail is read.
const audited = "audited"

// auditLines returns the lines about the pool that a component has logged.
func auditLines(t testing.TB, component *controlplane.Component) []testcluster.AuditTrailLine {
	t.Helper()
	return testcluster.AuditTrail(t, component, func(line testcluster.AuditTrailLine) bool { return line["group"] == audited })
}

// withMessage returns the lines with a message and a shard.
func withMessage(lines []testcluster.AuditTrailLine, message, shard string) []testcluster.AuditTrailLine {
	var found []testcluster.AuditTrailLine
	for _, line := range lines {
		if line["message"] == message && line["shard"] == shard {
			found = append(found, line)
		}
	}
	return found
}

// The logs of operator and servers show who made a pool smaller, and when: one request id leads
// from the change to the deletion of the instance. The events show it too.
func TestAuditTrail(t *testing.T) {
	t.Parallel()
	env.CreatePoolForTest(t, audited, 3)
	env.UntilRunning(t, audited, 3)
	env.Kubectl(t, "scale", "machinepools.cluster.x-k8s.io", audited, "--replicas", "1")
	env.UntilRunning(t, audited, 1)

	for _, id := range shardIDs[1:] { // each of them had one instance
		server := env.ShardServer(id)
		testcluster.Eventually(t, time.Minute, "shard "+id+" terminates an instance", func(context.Context) error {
			if found := len(withMessage(auditLines(t, server), "terminate instance", id)); found != 1 {
				return fmt.Errorf("%d lines", found)
			}
			return nil
		})
		ofOperator, ofServer := auditLines(t, env.OperatorProcess()), auditLines(t, server)
		shrinks := withMessage(ofOperator, "shrink group", id)
		require.Len(t, shrinks, 1, "lines of the operator for shard %s: %v", id, ofOperator)
		request := shrinks[0]["requestID"]
		assert.NotEmpty(t, request)
		assert.Equal(t, "scale-down", shrinks[0]["reason"])
		assert.Equal(t, "accepted", shrinks[0]["result"])
		assert.Regexp(t, "^MachinePool audited, spec.replicas: .* through scale", shrinks[0]["writer"])
		// The instances of this cluster are terminated without a drain.
		for _, message := range []string{"shrink group", "terminate instance"} {
			lines := withMessage(ofServer, message, id)
			require.Len(t, lines, 1, "%s: lines of the server of shard %s: %v", message, id, ofServer)
			assert.Equal(t, request, lines[0]["requestID"], message)
			assert.Equal(t, shrinks[0]["generation"], lines[0]["generation"], message)
			assert.Contains(t, lines[0]["writer"], ", certificate ", message)
		}
		accepted := withMessage(ofServer, "shrink group", id)[0]
		for _, line := range []testcluster.AuditTrailLine{shrinks[0], accepted} {
			assert.Equal(t, "1 0", line["from"]+" "+line["to"])
		}
		untilEvent(t, audited+"--"+id, "GroupShrunk", "from 1 to 0 instances; requestID "+request+"; MachinePool audited, spec.replicas: ")
	}
	assert.Empty(t, withMessage(auditLines(t, env.OperatorProcess()), "shrink group", shardIDs[0]))
	untilEvent(t, audited, "Scaled", "from 3 to 1 instances; MachinePool audited, spec.replicas: ")
}

// untilEvent waits until an object has exactly one event of a reason whose note begins with
// note.
func untilEvent(t testing.TB, object, reason, note string) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, object+" has the event "+reason, func(ctx context.Context) error {
		events, err := env.Kube.EventsV1().Events(installation.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		matching := 0
		for _, event := range events.Items {
			if event.Regarding.Name == object && event.Reason == reason {
				notes = append(notes, event.Note)
				if strings.HasPrefix(event.Note, note) {
					matching++
				}
			}
		}
		if matching != 1 {
			return fmt.Errorf("%d of the notes %q begin with %q", matching, notes, note)
		}
		return nil
	})
}
