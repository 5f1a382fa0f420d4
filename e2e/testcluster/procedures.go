// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/runbook"
)

// StartProcedure starts a procedure of docs/operations.md on the cluster, with its
// variables set to values. The administrator has kubectl and the programs of Nstance.
func (c *Cluster) StartProcedure(t testing.TB, heading string, values map[string]string) *runbook.Procedure {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	admin, err := controlplane.Builder{Root: root, Progress: os.Stderr}.Admin(t.Context())
	require.NoError(t, err)
	return runbook.StartProcedure(t, heading, runbook.Tools{
		Root:       root,
		Kubeconfig: c.KubeconfigPath(),
		Programs: map[string]string{
			"kubectl":        c.kubectl[0],
			"nstance-admin":  admin,
			"nstance-server": c.ShardServer(c.ShardIDs[0]).Argv[0],
		},
	}, values)
}
