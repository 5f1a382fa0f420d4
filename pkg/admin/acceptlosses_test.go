// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// TestShardAcceptLosses deletes the instances of a group without the server. They are
// replaced when an administrator has accepted that.
func TestShardAcceptLosses(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	upsert(t, s, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 4})
	nodes := func() int {
		list, err := s.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return len(list.Items)
	}
	until(t, func() bool { return nodes() == 4 })
	require.NoError(t, s.Kubernetes.CoreV1().Nodes().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	// The server may not have noticed the loss when it is accepted first.
	until(t, func() bool {
		assert.Contains(t, mustRun(t, "shard", "accept-losses", "workers", "--shard", "us-west-2a", "--storage", "file", "--storage-bucket", s.Bucket()),
			"The missing instances of group default/workers in shard us-west-2a are replaced within seconds.")
		return nodes() == 4
	})

	_, err := run(t, "shard", "accept-losses", "Workers", "--shard", "A")
	wantError(t, err, "--shard", "--storage-bucket", "Workers")
}
