// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

var errLost = errors.New("the connection was lost")

// startProvider runs the provider of a process.
func startProvider(t *testing.T, c *kwoktest.Cluster) *providertest.Harness {
	t.Helper()
	return providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
		p, err := kwok.New(kwok.Config{
			Shard: provider.Shard{ClusterID: "test", ID: "a", Region: "us-west-2", Zone: "zone"}, Options: options(), Client: c, CallContext: callContext,
		})
		require.NoError(t, err)
		return p
	})
}

func expectNodes(t *testing.T, c *kwoktest.Cluster, want ...string) {
	t.Helper()
	names, err := c.Existing(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, names, "Nodes")
}

// TestAnOutage: for ten minutes the API server does not respond, or responds wrongly. No
// instance changes its state, and no Node is deleted. Afterwards an instance that has
// vanished is missing.
func TestAnOutage(t *testing.T) {
	nodes := corev1.Resource("nodes")
	for name, f := range map[string]*kwoktest.Fault{
		"no response":      {Err: errLost, Hang: true},
		"lost connections": {Err: errLost},
		"lost responses":   {Err: errLost, After: true},
		"HTTP 401":         {Err: apierrors.NewUnauthorized("the token has expired")},
		"HTTP 403":         {Err: apierrors.NewForbidden(nodes, "", nil)},
		"HTTP 404":         {Err: apierrors.NewNotFound(nodes, "")},
		"HTTP 410":         {Err: apierrors.NewResourceExpired("too old resource version")},
		"HTTP 429":         {Err: apierrors.NewTooManyRequestsError("try later")},
		"HTTP 500":         {Err: apierrors.NewInternalError(errLost)},
		"HTTP 503":         {Err: apierrors.NewServiceUnavailable("try later")},
		"empty lists":      {EmptyLists: true},
		// A Node that the list has not is looked for by name.
		"empty lists and HTTP 503": {EmptyLists: true, Err: apierrors.NewServiceUnavailable("try later")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := kwoktest.NewCluster()
				cloudtest.Outage{
					Start:  func() *providertest.Harness { return startProvider(t, c) },
					Spec:   spec(),
					Begin:  func() { c.Begin(f) },
					End:    c.End,
					Delete: func(id string) { require.NoError(t, c.Remove(t.Context(), id)) },
					Calls:  c.TakeCalls,
					IsRead: func(call string) bool { return slices.Contains([]string{"get", "list", "watch"}, call) },
					Made:   func() int { return len(c.Made()) },
				}.Test(t)
			})
		})
	}
}

// TestAnOutageWhileInstancesAreCreatedAndDeleted delays them.
func TestAnOutageWhileInstancesAreCreatedAndDeleted(t *testing.T) {
	for name, f := range map[string]*kwoktest.Fault{
		"lost responses":   {Err: errLost, After: true},
		"late responses":   {Err: errLost, After: true, Hang: true},
		"lost connections": {Err: errLost},
		"HTTP 404":         {Err: apierrors.NewNotFound(corev1.Resource("nodes"), "")},
		"HTTP 503":         {Err: apierrors.NewServiceUnavailable("try later")},
		"empty lists":      {EmptyLists: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := kwoktest.NewCluster()
				h := startProvider(t, c)
				deleted := h.MustRun(spec())
				c.Begin(f)
				created := h.MustCreate(spec())
				h.MustDelete(deleted)
				time.Sleep(10 * time.Minute)
				c.End()
				h.Await(group, map[string]instance.State{created: instance.Running, deleted: providertest.Deleted})
				time.Sleep(10 * time.Minute)
				expectNodes(t, c, created)
				assert.Equal(t, []string{created}, slices.Collect(maps.Keys(h.States(group))))
			})
		})
	}
}
