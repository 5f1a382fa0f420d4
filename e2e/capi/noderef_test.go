// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// If Cluster API does not find the Node of a Machine, the operator sets it.
func TestNodeOfMachineWithoutClusterAPI(t *testing.T) {
	const name = "noderef"
	eventuallyConnected(t)
	env.CreatePoolForTest(t, name, 0)
	// Cluster API first sets the owner of the NstanceMachine, which the operator needs.
	testcluster.Stop(t, env.OperatorProcess())
	m := createMachine(t, name, name)
	testcluster.Eventually(t, time.Minute, "the NstanceMachine has an owner", func(ctx context.Context) error {
		object, err := env.NstanceMachines().Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(object.OwnerReferences) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
	capi := env.Component(controlplane.CAPI)
	testcluster.Stop(t, capi)
	testcluster.Start(t, env.OperatorProcess())
	var node string
	testcluster.Eventually(t, 2*time.Minute, "the Machine has a Node", func(ctx context.Context) error {
		object, err := env.Machines().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node = object.Status.NodeRef.Name; node == "" {
			return errors.New("it has none")
		}
		return nil
	})
	object, err := env.NstanceMachines().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, object.Status.InstanceID, node)

	// It is what Cluster API finds later.
	testcluster.Start(t, capi)
	testcluster.Eventually(t, 2*time.Minute, "the Machine runs", m.hasNode)
	assert.Equal(t, node, m.node)
	m.delete(t)
	testcluster.Eventually(t, 2*time.Minute, "the Machine is deleted", m.deleted)
}
