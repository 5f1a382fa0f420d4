// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/command"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plan"
	"nstance.dev/operator/pkg/plugin/plugintest"
	"nstance.dev/operator/pkg/plugin/status"
	"nstance.dev/operator/pkg/plugin/why"
)

// result is the output of a command and its exit code.
type result struct {
	stdout, stderr, message string
	code                    int
}

func run(t *testing.T, server *plugintest.Server, arguments ...string) result {
	t.Helper()
	// A kubeconfig of this machine must not have an effect.
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	streams, _, stdout, stderr := genericiooptions.NewTestIOStreams()
	cmd := command.New(streams)
	cmd.SetArgs(append([]string{"--server", server.URL, "--namespace", plugintest.Namespace}, arguments...))
	err := cmd.ExecuteContext(t.Context())
	return result{stdout.String(), stderr.String(), command.Message(err), command.ExitCode(err)}
}

func drained() *objects.Snapshot {
	s := plugintest.AtRest()
	plugintest.Drain(s, "a", "a1", "scale-down")
	for i := range s.ShardGroups.Items {
		s.ShardGroups.Items[i].Labels = map[string]string{"nstance.dev/group": plugintest.Pool}
	}
	return s
}

func TestExitCodes(t *testing.T) {
	for name, test := range map[string]struct {
		arguments []string
		forbidden []string
		code      int
		message   string
	}{
		"everything is known":          {[]string{"status"}, nil, 0, ""},
		"Pods are forbidden":           {[]string{"drain-status"}, []string{"pods"}, 2, ""},
		"why, MachinePools forbidden":  {[]string{"why", "a1"}, []string{"machinepools"}, 2, ""},
		"why, by provider id":          {[]string{"why", plugintest.ProviderID("a", "a1")}, nil, 0, ""},
		"there is no such instance":    {[]string{"why", "kwok:///a/none"}, nil, 1, `Node, NstanceMachine or instance "kwok:///a/none" not found in namespace "nstance-system"`},
		"there is no such pool":        {[]string{"status", "none"}, nil, 1, `NstanceMachinePool "none" not found in namespace "nstance-system"; there are: workers`},
		"pools are forbidden":          {[]string{"status"}, []string{"nstancemachinepools"}, 1, "forbidden to list nstancemachinepools"},
		"plan":                         {[]string{"plan", "workers", "--replicas", "4"}, nil, 0, ""},
		"plan, blocked":                {[]string{"plan", "workers", "--replicas", "20000"}, nil, 3, ""},
		"plan, Machines are forbidden": {[]string{"plan", "workers"}, []string{"machines"}, 2, ""},
		"plan of all namespaces":       {[]string{"plan", "workers", "-A"}, nil, 1, "a plan is for one pool: -A cannot be used"},
		"plan of no pool":              {[]string{"plan"}, nil, 1, "name a pool, or a file with -f"},
		"plan of fewer than none":      {[]string{"plan", "workers", "--replicas=-1"}, nil, 1, "--replicas must not be negative, and is -1"},
		"unknown output":               {[]string{"status", "-o", "xml"}, nil, 1, `--output must be wide, json or yaml, and is "xml"`},
		"why without a Node":           {[]string{"why"}, nil, 1, "accepts 1 arg(s), received 0"},
	} {
		t.Run(name, func(t *testing.T) {
			server := plugintest.NewServer(t, drained())
			server.Forbidden = test.forbidden
			got := run(t, server, test.arguments...)
			if got.code != test.code || got.message != test.message {
				t.Errorf("exit code %d with %q, want %d with %q\n%s", got.code, got.message, test.code, test.message, got.stdout)
			}
		})
	}
}

// Scripts read these structures.
func TestStructuredOutput(t *testing.T) {
	server := plugintest.NewServer(t, drained())
	for _, format := range []string{"json", "yaml"} {
		var pools status.Status
		require.NoError(t, yaml.UnmarshalStrict([]byte(run(t, server, "status", "-o", format).stdout), &pools))
		if pools.APIVersion != objects.APIVersion || pools.Kind != status.Kind || len(pools.Pools) != 1 || len(pools.Drains) != 1 {
			t.Errorf("%s: %+v", format, pools)
		}
		var list status.DrainStatus
		require.NoError(t, yaml.UnmarshalStrict([]byte(run(t, server, "drain-status", "a1", "-o", format).stdout), &list))
		if list.APIVersion != objects.APIVersion || list.Kind != status.DrainStatusKind || len(list.Drains) != 1 || list.Drains[0].Reason != "scale-down" {
			t.Errorf("%s: %+v", format, list)
		}
		var explained why.Explanation
		require.NoError(t, yaml.UnmarshalStrict([]byte(run(t, server, "why", "a1", "-o", format).stdout), &explained))
		if explained.APIVersion != objects.APIVersion || explained.Kind != why.Kind || explained.Verdict != why.Drained {
			t.Errorf("%s: %+v", format, explained)
		}
	}
}

// A file is applied as a dry run by its field manager, and nothing else is written.
func TestPlanOfAFile(t *testing.T) {
	s := drained()
	plugintest.Order(s, "a", "a2", "a1")
	server := plugintest.NewServer(t, s)
	file := filepath.Join(t.TempDir(), "pool.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`apiVersion: v1
kind: ConfigMap
metadata: {name: other}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: NstanceMachinePool
metadata: {name: workers}
spec: {template: large}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachinePool
metadata: {name: workers}
spec: {replicas: 3}
`), 0o600))
	got := run(t, server, "plan", "-f", file, "--field-manager", "ci", "-o", "json")
	require.Equal(t, 0, got.code, got.message)
	var planned plan.Plan
	require.NoError(t, yaml.UnmarshalStrict([]byte(got.stdout), &planned))
	assert.EqualValues(t, 4, *planned.Replicas)
	assert.EqualValues(t, 3, planned.NextReplicas)
	require.Len(t, planned.Changes, 1)
	assert.Equal(t, "template", planned.Changes[0].Setting)
	assert.True(t, planned.Changes[0].Replaces)
	for _, request := range server.Requests("") {
		if request.Method != http.MethodGet {
			assert.Equal(t, []string{http.MethodPatch, metav1.DryRunAll, "ci"}, []string{request.Method, request.DryRun, request.FieldManager})
		}
	}
	for text, want := range map[string]string{
		"kind: ConfigMap": ": read the objects: there is neither an NstanceMachinePool nor a MachinePool",
		"a: [":            ": read the objects: ",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got := run(t, server, "plan", "-f", file)
		assert.Equal(t, 1, got.code)
		assert.Contains(t, got.message, want)
	}
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: NstanceMachinePool\nmetadata: {name: others}\n"), 0o600))
	assert.Contains(t, run(t, server, "plan", "workers", "-f", file).message, `describes pool "others", and the plan is for pool "workers"`)
}

func TestNoPools(t *testing.T) {
	got := run(t, plugintest.NewServer(t, &objects.Snapshot{}), "status")
	if got.code != 0 || got.stdout != "" || got.stderr != "No pools found in namespace \"nstance-system\". -A reads all namespaces.\n" {
		t.Errorf("%+v", got)
	}
}

// Messages of shards, and annotations of Nodes, do not control the terminal.
func TestOutputDoesNotControlTheTerminal(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;title\a gone\rall is well \u009b1A\u202e\x7f"
	s := drained()
	plugintest.SetCondition(&s.Pools.Items[0].Status.Conditions, "Ready", metav1.ConditionFalse, "Broken", hostile)
	plugintest.SetCondition(&plugintest.Group(s, "a").Status.Conditions, "ShardReachable", metav1.ConditionFalse, "Broken", hostile)
	plugintest.AddBlockedDrain(s, "a", v1beta1.BlockedDrain{Instance: "a1", Node: "a1", Reason: "RequestsFailing", Message: hostile})
	plugintest.AddEvent(s, "a1", "DrainBlocked", hostile)
	for i := range s.Nodes.Items {
		for key := range s.Nodes.Items[i].Annotations {
			s.Nodes.Items[i].Annotations[key] += hostile
		}
	}
	plugintest.Order(s, "a", "a1", "a2")
	plugintest.Group(s, "a").Status.DeletionOrder[0].Reason = hostile
	server := plugintest.NewServer(t, s)
	for _, arguments := range [][]string{
		{"status"}, {"status", "-o", "wide"}, {"status", "-o", "json"}, {"status", "-o", "yaml"},
		{"plan", "workers", "--replicas=1"}, {"plan", "workers", "--replicas=1", "-o", "json"},
		{"drain-status"}, {"drain-status", "a1"}, {"why", "a1"}, {"why", "a1", "-o", "wide"}, {"status", hostile},
	} {
		got := run(t, server, arguments...)
		assert.Contains(t, got.stdout+got.message, "gone", "%q", arguments)
		for _, r := range got.stdout + got.stderr {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q prints %q:\n%q", arguments, r, got.stdout)
				break
			}
		}
	}
}

// The help lists every command, and the help of a command lists its flags.
func TestHelp(t *testing.T) {
	for name, arguments := range map[string][]string{
		"help": {"--help"}, "help-dashboard": {"dashboard", "--help"}, "help-plan": {"plan", "--help"},
		"help-rotate": {"rotate", "--help"}, "help-replace": {"replace", "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			// A default of the flags has the home folder.
			t.Setenv("HOME", "/home/user")
			streams, _, stdout, _ := genericiooptions.NewTestIOStreams()
			cmd := command.New(streams)
			cmd.SetArgs(arguments)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			plugintest.Golden(t, name+".txt", stdout.String())
		})
	}
}
