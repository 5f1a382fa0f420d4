// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// createLostNode creates a Node whose kubelet has not reported for ten minutes.
func createLostNode(t *testing.T, name, providerID string) {
	t.Helper()
	_, err := env.Kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		// kwok does not write the status of Nodes with this label.
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "marekvs"}},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: metav1.NewTime(time.Now().Add(-10 * time.Minute)),
		}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := env.Kube.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			assert.NoError(t, err)
		}
	})
}

// A kubelet registers just before its machine is terminated. Nothing else deletes the Node: the
// pool never had its provider id.
func TestNodeOfATerminatedInstanceIsDeleted(t *testing.T) {
	t.Parallel()
	const name = "late"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	before, err := env.Nodes(t.Context(), name)
	require.NoError(t, err)
	env.Scale(t, name, 2)
	env.UntilRunning(t, name, 2)
	left := env.NodeNames(t, name)
	before = slices.DeleteFunc(before, func(node corev1.Node) bool { return slices.Contains(left, node.Name) })
	require.Len(t, before, 1, "terminated instances")
	id, providerID := before[0].Name, before[0].Spec.ProviderID

	from := env.AuditEnd(t)
	// The operator checks one Node after the other, in the order in which they are created.
	others := map[string]string{
		"late-foreign":       "aws:///us-west-2a/i-0123456789abcdef0",
		"late-other-project": "kwok:///us-west-2a/worker-1",
		"late-unknown":       "kwok:///us-west-2a/knd06bgm7733st2576nx5jht4ecjw",
		"late-other-scheme":  "qemu" + strings.TrimPrefix(providerID, "kwok"),
	}
	for node, otherID := range others {
		createLostNode(t, node, otherID)
	}
	createLostNode(t, "late-terminated", providerID)
	testcluster.Eventually(t, 2*time.Minute, "the Node of the terminated instance is deleted", func(ctx context.Context) error {
		_, err := env.Kube.CoreV1().Nodes().Get(ctx, "late-terminated", metav1.GetOptions{})
		return testcluster.NotFound("Node late-terminated", err)
	})
	deletions := env.OperatorWrites(t, from, func(r controlplane.Request) bool { return r.Action() == "delete nodes" })
	require.Len(t, deletions, 1, "deletions of Nodes: %s", testcluster.Describe(deletions))
	assert.Equal(t, "late-terminated", deletions[0].Name)
	for node := range others {
		_, err := env.Kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		assert.NoError(t, err)
	}
	assert.ElementsMatch(t, left, env.NodeNames(t, name))

	testcluster.Eventually(t, time.Minute, "the Node has an event", func(ctx context.Context) error {
		list, err := env.Kube.EventsV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event := range list.Items {
			if event.Regarding.Name == "late-terminated" && event.Reason == "DeletingNode" && strings.HasPrefix(event.Note, "its instance "+id+" is terminated, as shard ") {
				return nil
			}
		}
		return errors.New("it has none")
	})
	lines := testcluster.AuditTrail(t, env.OperatorProcess(), func(line testcluster.AuditTrailLine) bool { return line["kind"] == "Node" })
	require.Len(t, lines, 1)
	assert.Equal(t, "delete object late-terminated", lines[0]["message"]+" "+lines[0]["name"])
}
