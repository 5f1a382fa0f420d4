// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

// BackUpEtcd returns a copy of etcd's data.
func (c *Cluster) BackUpEtcd(t testing.TB) string {
	t.Helper()
	defer Freeze(t, c.Component(controlplane.Etcd))()
	backup := filepath.Join(t.TempDir(), "etcd")
	require.NoError(t, os.CopyFS(backup, os.DirFS(c.etcdDir())))
	return backup
}

// RestoreEtcd replaces etcd's data, and restarts the control plane, as the procedure for
// a restore demands.
func (c *Cluster) RestoreEtcd(t testing.TB, backup string) {
	t.Helper()
	stopped := []string{controlplane.APIServer, controlplane.Etcd}
	clients := []string{controlplane.ControllerManager, controlplane.Scheduler, controlplane.CAPI, controlplane.KWOK}
	for _, name := range slices.Concat(clients, stopped) {
		require.NoError(t, c.Component(name).Kill(t.Context()))
	}
	require.NoError(t, os.RemoveAll(c.etcdDir()))
	require.NoError(t, os.CopyFS(c.etcdDir(), os.DirFS(backup)))
	slices.Reverse(stopped)
	for _, name := range slices.Concat(stopped, clients) {
		Start(t, c.Component(name))
	}
}

func (c *Cluster) etcdDir() string { return filepath.Join(c.Dir(), "etcd") }
