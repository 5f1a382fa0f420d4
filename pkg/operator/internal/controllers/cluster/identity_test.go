// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// The condition IdentityReady follows the certificate, and a problem is one event.
func TestIdentityReady(t *testing.T) {
	h := newHarness(t, source())
	h.expect(requestToken, writeSecret, writeCluster, writeStatus, createCluster)
	assert.Nil(t, h.identityReady(), "before the first sync of the certificate")

	for _, test := range []struct {
		state  metav1.Condition
		events []string
	}{
		{metav1.Condition{Status: metav1.ConditionFalse, Reason: "NonceRejected", Message: "it expired"}, []string{"Warning NonceRejected it expired"}},
		{metav1.Condition{Status: metav1.ConditionFalse, Reason: "NonceRejected", Message: "it was used"}, nil},
		{metav1.Condition{Status: metav1.ConditionTrue, Reason: "Ready"}, nil},
		{metav1.Condition{Status: metav1.ConditionTrue, Reason: "RenewalOverdue", Message: "soon"}, nil},
		{metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonCertificateExpiring, Message: "very soon"}, []string{"Warning CertificateExpiring very soon"}},
		{metav1.Condition{Status: metav1.ConditionFalse, Reason: "NotRegistered", Message: "the operator is registering"}, nil},
	} {
		h.identity.state = test.state
		h.expect(writeStatus)
		h.ExpectEvents(test.events...)
		condition := h.identityReady()
		require.NotNil(t, condition)
		assert.Equal(t, test.state, metav1.Condition{Status: condition.Status, Reason: condition.Reason, Message: condition.Message})
	}
	// The next leader keeps the condition until it knows better.
	h.identity = &certificate{}
	h.restart(source())
	h.expect()
	assert.NotNil(t, h.identityReady())
}

func TestChangeOfTheIdentityEnqueues(t *testing.T) {
	h := newHarness(t, source())
	enqueued := controllertest.Enqueued(t, &h.controller.queue, func() { h.identity.handler() })
	assert.Equal(t, []string{name + " at 0s"}, enqueued)
}

// identityReady returns nil if there is no such condition.
func (h *harness) identityReady() *metav1.Condition {
	h.T.Helper()
	cluster, err := h.InfrastructureV1beta1().NstanceClusters(namespace).Get(h.Ctx, name, metav1.GetOptions{})
	require.NoError(h.T, err)
	return meta.FindStatusCondition(cluster.Status.Conditions, v1beta1.ConditionIdentityReady)
}
