// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

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
	"nstance.dev/operator/e2e/testcluster"
)

// One request id leads from a scale-down to the drain and the termination of the instance, and
// another request id from the operator's acknowledgement of the drain to the server's.
func TestAuditTrailOfADrain(t *testing.T) {
	t.Parallel()
	const name = "audited"
	nodes := createGroup(t, steadyShard, name, 2)
	env.CreateNamespace(t, name)
	env.CreatePods(t, timeout, newPod(name, "pod", nodes[0]))
	env.Scale(t, name, 1)
	instance := nodes[0] // the oldest
	deadline := untilDrained(t, instance).DeleteAt

	operator, server := env.OperatorProcess(), env.ShardServer(steadyShard)
	testcluster.Eventually(t, timeout, "the server terminates the instance", func(context.Context) error {
		if lines := trail(t, server, "terminate instance", "instance", instance); len(lines) != 1 {
			return fmt.Errorf("lines %v", lines)
		}
		return nil
	})
	// The server logs a call before it replies.
	testcluster.Eventually(t, timeout, "the operator logs the acknowledgement", func(context.Context) error {
		if lines := trail(t, operator, "acknowledge drain", "instance", instance); len(lines) != 1 {
			return fmt.Errorf("lines %v", lines)
		}
		return nil
	})
	shrink := only(t, operator, "shrink group", "group", name)
	assert.NotEmpty(t, shrink["requestID"])
	for _, line := range []testcluster.AuditTrailLine{
		only(t, server, "shrink group", "group", name),
		only(t, server, "drain instance", "instance", instance),
		only(t, server, "terminate instance", "instance", instance),
	} {
		assert.Equal(t, shrink["requestID"], line["requestID"], "%v", line)
		assert.Equal(t, shrink["generation"], line["generation"], "%v", line)
		assert.Equal(t, steadyShard, line["shard"], "%v", line)
	}
	drain := only(t, server, "drain instance", "instance", instance)
	assert.Equal(t, "scale-down", drain["reason"])
	text, _, _ := strings.Cut(drain["deleteAt"], " m=")
	at, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
	require.NoError(t, err)
	assert.WithinDuration(t, deadline, at, time.Second, "the deadline that operators are given")

	acknowledged, received := only(t, operator, "acknowledge drain", "instance", instance), only(t, server, "acknowledge drain", "instance", instance)
	assert.NotEmpty(t, acknowledged["requestID"])
	assert.Equal(t, acknowledged["requestID"], received["requestID"])
	assert.NotEqual(t, shrink["requestID"], acknowledged["requestID"])
	assert.Equal(t, []string{"scale-down", "drained", "accepted", name},
		[]string{acknowledged["reason"], acknowledged["from"], acknowledged["result"], acknowledged["group"]})
	assert.Contains(t, received["writer"], ", certificate ")
	untilNodeEvent(t, instance, "DrainCompleted", "requestID "+acknowledged["requestID"])
}

// trail returns the lines with a message in which a key has a value.
func trail(t testing.TB, component *controlplane.Component, message, key, value string) []testcluster.AuditTrailLine {
	t.Helper()
	return testcluster.AuditTrail(t, component, func(line testcluster.AuditTrailLine) bool {
		return line["message"] == message && line[key] == value
	})
}

// only returns the only line of trail.
func only(t testing.TB, component *controlplane.Component, message, key, value string) testcluster.AuditTrailLine {
	t.Helper()
	lines := trail(t, component, message, key, value)
	require.Len(t, lines, 1, "lines %q with %s %s", message, key, value)
	return lines[0]
}

// untilNodeEvent waits until a Node has an event of a reason whose note contains a text.
func untilNodeEvent(t testing.TB, node, reason, text string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "Node "+node+" has the event "+reason, func(ctx context.Context) error {
		list, err := env.Kube.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "regarding.name=" + node + ",reason=" + reason,
		})
		if err != nil {
			return err
		}
		for _, event := range list.Items {
			if strings.Contains(event.Note, text) {
				return nil
			}
		}
		return fmt.Errorf("%d events, none with %s", len(list.Items), text)
	})
}
