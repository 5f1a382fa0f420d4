// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloudtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// NewRequest returns a request for the machine of a new instance.
func NewRequest(t *testing.T, instanceType provider.InstanceType, subnet string) cloud.Request {
	t.Helper()
	id := providertest.NewID(t)
	return cloud.Request{Token: id, Spec: provider.Spec{
		ID: id, Group: workers, Kind: "knd", Template: "worker", Type: instanceType, Subnet: subnet,
		CreatedAt: time.Now().UTC(), Userdata: []byte("userdata of " + id),
	}}
}

// ListByID lists the machines, of which no instance may have two.
func ListByID(t *testing.T, api cloud.API) map[string]cloud.VM {
	t.Helper()
	list, err := api.List(t.Context())
	require.NoError(t, err)
	byID := map[string]cloud.VM{}
	for _, m := range list {
		byID[m.ID] = m
	}
	assert.Len(t, list, len(byID), "machines, each once")
	return byID
}
