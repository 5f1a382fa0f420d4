// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/change"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plan"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// patches returns the requests of a command that are no reads.
func patches(server *plugintest.Server) []plugintest.Request {
	return slices.DeleteFunc(server.Requests(""), func(r plugintest.Request) bool { return r.Method == http.MethodGet })
}

// writable returns a server on which pools and Nodes can be changed, and on which a pool is rolling
// out for a reason.
func writable(t *testing.T, status metav1.ConditionStatus, reason string) *plugintest.Server {
	s := plugintest.AtRest()
	plugintest.SetCondition(&s.Pools.Items[0].Status.Conditions, v1beta1.ConditionRollingOut, status, reason, "so it is")
	for i := range s.Nodes.Items {
		s.Nodes.Items[i].UID = "node-uid"
	}
	server := plugintest.NewServer(t, s)
	server.Writable = []string{"nstancemachinepools", "nodes"}
	return server
}

// Each command makes one change, of the object that its arguments name, and prints it.
func TestChanges(t *testing.T) {
	for name, test := range map[string]struct {
		arguments       []string
		resource, patch string
	}{
		"pause":                   {[]string{"rotate", "workers", "--pause"}, "nstancemachinepools", `{"metadata":{"uid":"pool-uid"},"spec":{"rotation":{"paused":true}}}`},
		"replace":                 {[]string{"replace", "a1"}, "nodes", `{"metadata":{"uid":"node-uid","annotations":{"nstance.dev/remediate-instance":""}}}`},
		"replace, by provider id": {[]string{"replace", plugintest.ProviderID("a", "a1")}, "nodes", `{"metadata":{"uid":"node-uid","annotations":{"nstance.dev/remediate-instance":""}}}`},
		"replace, and keep it":    {[]string{"replace", "a1", "--keep"}, "nodes", `{"metadata":{"uid":"node-uid","annotations":{"nstance.dev/remediate-instance":null}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			server := writable(t, metav1.ConditionFalse, v1beta1.ReasonNotRollingOut)
			got := run(t, server, append(test.arguments, "-o", "json")...)
			require.Equal(t, 0, got.code, got.message)
			var made change.Change
			require.NoError(t, yaml.UnmarshalStrict([]byte(got.stdout), &made))
			assert.Equal(t, []string{objects.APIVersion, change.Kind, plugintest.Pool}, []string{made.APIVersion, made.Kind, made.Pool})
			written := patches(server)
			require.Len(t, written, 1)
			assert.Equal(t, test.resource, written[0].Resource)
			assert.JSONEq(t, test.patch, written[0].Patch)
			assert.Equal(t, []string{"", "kubectl-nstance"}, []string{written[0].DryRun, written[0].FieldManager})
			assert.Contains(t, run(t, server, test.arguments...).stdout, made.Command)
		})
	}
}

// A rotation with --wait ends when the operator has reported its end, or that it does not go on.
func TestRotateAndWait(t *testing.T) {
	for name, test := range map[string]struct {
		status         metav1.ConditionStatus
		reason         string
		arguments      []string
		code           int
		stderr, failed string
	}{
		"without --wait": {metav1.ConditionTrue, v1beta1.ReasonRollingOut, nil, 0, "", ""},
		"it has ended":   {metav1.ConditionFalse, v1beta1.ReasonNotRollingOut, []string{"--wait"}, 0, "Pool workers: all instances are up to date\n", ""},
		"it has failed":  {metav1.ConditionTrue, v1beta1.ReasonRotationFailed, []string{"--wait"}, 3, "Pool workers: RotationFailed: so it is\n", ""},
		"it takes too long": {metav1.ConditionTrue, v1beta1.ReasonRollingOut, []string{"--wait", "--timeout=1ns"}, 1,
			"Pool workers: RollingOut: so it is\n", "wait for the rotation of pool workers: context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			server := writable(t, test.status, test.reason)
			got := run(t, server, append([]string{"rotate", "workers"}, test.arguments...)...)
			assert.Equal(t, test.code, got.code, got.message)
			assert.Equal(t, test.stderr, got.stderr)
			assert.Equal(t, test.failed, got.message)
			written := patches(server)
			require.Len(t, written, 1)
			assert.Contains(t, written[0].Patch, `"after":`)
			assert.Contains(t, got.stdout, "are outdated, and are replaced.")
		})
	}
}

// A dry run shows the plan of the pool as it would be, and stores nothing.
func TestRotateAsADryRun(t *testing.T) {
	server := plugintest.NewServer(t, plugintest.AtRest())
	got := run(t, server, "rotate", "workers", "--dry-run", "-o", "json")
	require.Equal(t, 0, got.code, got.message)
	var planned plan.Plan
	require.NoError(t, yaml.UnmarshalStrict([]byte(got.stdout), &planned))
	require.Len(t, planned.Changes, 1)
	assert.Equal(t, "rotation", planned.Changes[0].Setting)
	assert.True(t, planned.Changes[0].Replaces)
	assert.NotEmpty(t, planned.Rotation)
	written := patches(server)
	require.Len(t, written, 1)
	assert.Equal(t, metav1.DryRunAll, written[0].DryRun)
}

// What is not certain changes nothing.
func TestChangesThatAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		forbidden []string
		message   string
	}{
		"there is no such pool":      {[]string{"rotate", "none"}, nil, `NstanceMachinePool "none" not found in namespace "nstance-system"; there are: workers`},
		"pools of all namespaces":    {[]string{"rotate", "workers", "-A"}, nil, "a rotation is of one pool: -A cannot be used"},
		"nothing is paused":          {[]string{"rotate", "workers", "--resume"}, nil, "pool workers has no spec.rotation, and so its rotation is not paused"},
		"pause and resume":           {[]string{"rotate", "workers", "--pause", "--resume"}, nil, "if any flags in the group [pause resume] are set none of the others can be; [pause resume] were all set"},
		"pause and wait":             {[]string{"rotate", "workers", "--pause", "--wait"}, nil, "if any flags in the group [pause wait] are set none of the others can be; [pause wait] were all set"},
		"there is no such Node":      {[]string{"replace", "none"}, nil, `Node, NstanceMachine or instance "none" not found in namespace "nstance-system"`},
		"Nodes are forbidden":        {[]string{"replace", "a1"}, []string{"nodes"}, "forbidden to get nodes"},
		"shard groups are forbidden": {[]string{"replace", "a1"}, []string{"nstanceshardgroups"}, "forbidden to list nstanceshardgroups"},
	} {
		t.Run(name, func(t *testing.T) {
			server := writable(t, metav1.ConditionFalse, v1beta1.ReasonNotRollingOut)
			server.Forbidden = test.forbidden
			got := run(t, server, test.arguments...)
			assert.Equal(t, 1, got.code)
			assert.Equal(t, test.message, got.message)
			assert.Empty(t, patches(server))
		})
	}
	server := plugintest.NewServer(t, plugintest.AtRest())
	for what, arguments := range map[string][]string{"change pool workers: ": {"rotate", "workers"}, "change Node a1: ": {"replace", "a1"}} {
		got := run(t, server, arguments...)
		assert.Equal(t, 1, got.code)
		assert.Contains(t, got.message, what)
		assert.Empty(t, got.stdout)
	}
}
