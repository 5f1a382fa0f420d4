// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// While a pool is scaled over three shards from zero to six and to two, a Deployment serves
// every request, and every Node is drained before its container is stopped.
func TestNoRequestFailsWhileAPoolIsScaled(t *testing.T) {
	skipUnlessFull(t)
	const name = "serving"
	env.CreatePoolForTest(t, name, 0)
	createDeployment(t, name, 2)
	client := newServiceClient(t, name)

	env.Scale(t, name, 6)
	env.UntilRunning(t, name, 6)
	// With a Deployment of this size from the start, all Pods might be on the first Nodes.
	scaleDeployment(t, name, 6)
	untilAvailable(t, name, 6)
	client.untilServed(t, 300)

	env.Scale(t, name, 2)
	containers.untilRemoved(t, name, 4)
	env.UntilRunning(t, name, 2)
	untilAvailable(t, name, 6)
	client.untilServed(t, 300)
	client.expectNoFailure(t)
	if _, pods, _ := client.counts(); pods <= 6 {
		t.Errorf("%d Pods have served, want more than there are at once: none was evicted", pods)
	}

	containers.expectCounts(t, name, 6, 4)
	containers.expectDrained(t, name, 4)
	assert.Len(t, ids(t, name), 2)
}
