// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// readerRole is the ClusterRole of the manifests with the rights that the plugin needs.
const readerRole = "nstance-reader"

// The plugin of kubectl shows a pool at rest, with an unreachable shard, and with a blocked drain,
// to a user who has only the rights of the ClusterRole in the manifests. It shows values as
// unknown that the user may not read.
func TestPlugin(t *testing.T) {
	t.Parallel()
	const name, replicas = "plugin", 4
	kubectl := newPluginRunner(t)
	reader := account(t, "plugin-reader", readerRole)
	require.NoError(t, env.CreatePoolOn(t.Context(), name, replicas, steadyShard, restartedShard))
	nodes := readyNodes(t, name, replicas)
	env.UntilRunning(t, name, replicas)
	names := startingWith(nodeOn(t, steadyShard, name), nodes)
	kubectl.golden(t, "at-rest", reader, 0, names, "status", name)
	kubectl.golden(t, "kept", reader, 0, names, "why", names[0])
	expectReadOnly(t, "plugin-reader")

	testcluster.Kill(t, env.ShardServer(restartedShard))
	testcluster.Eventually(t, timeout, "the shard is unreachable", func(ctx context.Context) error {
		return poolIs(ctx, name, v1beta1.ReasonShardUnreachable)
	})
	kubectl.golden(t, "shard-away", reader, 0, names, "status", name)
	testcluster.Start(t, env.ShardServer(restartedShard))
	env.UntilRunning(t, name, replicas)

	env.CreateNamespace(t, name)
	for i, node := range nodes {
		pod := newPod(name, fmt.Sprintf("pod-%d", i), node)
		env.CreatePods(t, timeout, pod)
		protect(t, name, pod.Name)
	}
	planned := kubectl.plannedNode(t, reader, name, replicas-1)
	planArguments := []string{"plan", name, fmt.Sprintf("--replicas=%d", replicas-1)}
	blocking := fmt.Sprintf("pod-%d", slices.Index(nodes, planned))
	kubectl.golden(t, "plan", reader, 3, append(startingWith(planned, nodes), blocking), planArguments...)
	env.Scale(t, name, replicas-1)
	var drained string
	testcluster.Eventually(t, timeout, "the drain is blocked", func(ctx context.Context) error {
		condition, err := progress(ctx, restartedShard, name)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(nodes, func(node string) bool { return strings.Contains(condition.Message, "Node "+node+":") })
		if condition.Status != metav1.ConditionFalse || at < 0 {
			return fmt.Errorf("condition %+v", condition)
		}
		drained = nodes[at]
		if pool, err := env.NstanceMachinePool(ctx, name); err != nil || ptr.Deref(pool.Status.BlockedReplicas, 0) != 1 {
			return errors.Join(err, errors.New("the pool does not report the blocked drain"))
		}
		return poolIs(ctx, name, v1beta1.ReasonDrainBlocked)
	})
	require.Equal(t, planned, drained, "the plan named the Node")
	pod := fmt.Sprintf("pod-%d", slices.Index(nodes, drained))
	names = append(startingWith(drained, nodes), pod)
	kubectl.golden(t, "scaling", reader, 0, names, "status", name)
	kubectl.golden(t, "drain-status", reader, 0, names, "drain-status", drained)
	kubectl.golden(t, "drained", reader, 0, names, "why", drained)

	kubectl.golden(t, "pods-forbidden", account(t, "plugin-without-pods", withoutPods(t)), 2, names, "drain-status", drained)
	kubectl.golden(t, "view-only", account(t, "plugin-view", "nstance-view"), 2, names, "status", name)
	unprotect(t, name, pod)
	env.UntilRunning(t, name, replicas-1)
}

// nodeOn returns a Node of a group on a shard.
func nodeOn(t *testing.T, shard, group string) string {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), group)
	require.NoError(t, err)
	for _, node := range nodes {
		if strings.Contains(node.Spec.ProviderID, "/"+shard+"/") {
			return node.Name
		}
	}
	t.Fatalf("group %s has no Node on shard %s", group, shard)
	return ""
}

// startingWith returns names with the name first at the beginning.
func startingWith(first string, names []string) []string {
	return append([]string{first}, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == first })...)
}

// poolIs succeeds when the condition Ready of a pool is False for a reason.
func poolIs(ctx context.Context, name, reason string) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionFalse, reason)
}

// account creates a ServiceAccount with a ClusterRole, and returns its kubeconfig.
func account(t *testing.T, name, role string) string {
	t.Helper()
	path, err := env.KubeconfigWithToken(name, env.CreateAccount(t, name, role))
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "the rights of "+name+" are in force", func(ctx context.Context) error {
		return allowed(ctx, name, authorizationv1.ResourceAttributes{Verb: "list", Group: v1beta1.GroupName, Resource: "nstancemachinepools"}, true)
	})
	return path
}

// withoutPods creates a copy of the ClusterRole of readers without the right to read Pods.
func withoutPods(t *testing.T) string {
	t.Helper()
	const name = readerRole + "-without-pods"
	roles := env.Kube.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), readerRole, metav1.GetOptions{})
	require.NoError(t, err)
	role.ObjectMeta = metav1.ObjectMeta{Name: name}
	for i := range role.Rules {
		role.Rules[i].Resources = slices.DeleteFunc(role.Rules[i].Resources, func(resource string) bool { return resource == "pods" })
	}
	_, err = roles.Create(t.Context(), role, metav1.CreateOptions{})
	require.NoError(t, err)
	return name
}

// expectReadOnly expects that an account may neither write nor read Secrets.
func expectReadOnly(t *testing.T, name string) {
	t.Helper()
	for _, forbidden := range []authorizationv1.ResourceAttributes{
		{Verb: "list", Resource: "secrets"},
		{Verb: "patch", Resource: "nodes"},
		{Verb: "create", Resource: "pods", Subresource: "eviction"},
		{Verb: "patch", Group: "cluster.x-k8s.io", Resource: "machinepools"},
		{Verb: "delete", Group: v1beta1.GroupName, Resource: "nstancemachinepools"},
	} {
		require.NoError(t, allowed(t.Context(), name, forbidden, false))
	}
}

// allowed succeeds if an account has a right as expected.
func allowed(ctx context.Context, name string, attributes authorizationv1.ResourceAttributes, want bool) error {
	review, err := env.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + installation.Namespace + ":" + name, ResourceAttributes: &attributes,
		},
	}, metav1.CreateOptions{})
	if err == nil && review.Status.Allowed != want {
		err = fmt.Errorf("%s: allowed to %s %s: %t, want %t", name, attributes.Verb, attributes.Resource, review.Status.Allowed, want)
	}
	return err
}

// pluginRunner runs the plugin through kubectl, which finds it in PATH.
type pluginRunner struct{ kubectl, path string }

func newPluginRunner(t *testing.T) pluginRunner {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(t.Context())
	require.NoError(t, err)
	plugin, err := builder.Plugin(t.Context())
	require.NoError(t, err)
	return pluginRunner{kubectl: binaries.Kube, path: filepath.Dir(plugin)}
}

// golden runs a command and compares what it prints with testdata/plugin-NAME.txt. The file has
// "first" for the first of names, and "other" for every other name.
func (r pluginRunner) golden(t *testing.T, name, kubeconfig string, code int, names []string, arguments ...string) {
	t.Helper()
	arguments = append([]string{"kubectl", "nstance"}, append(arguments, "--namespace", installation.Namespace)...)
	cmd := exec.CommandContext(t.Context(), r.kubectl, arguments...)
	cmd.Env = append(os.Environ(), "PATH="+r.path, "KUBECONFIG="+kubeconfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("%s\n%s%s", strings.Join(arguments, " "), stdout.String(), stderr.String())
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%s: exit code %d, want %d", name, got, code)
	}
	plugintest.Golden(t, "plugin-"+name+".txt", normalize(stdout.String(), names)+stderr.String())
}

// plannedNode returns the only Node that leaves by the plan for a number of replicas, as soon as the
// plan is exact and the only Pod on it blocks its drain.
func (r pluginRunner) plannedNode(t *testing.T, kubeconfig, pool string, replicas int) (node string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the plan names a Node with a blocking Pod", func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, r.kubectl, "kubectl", "nstance", "plan", pool, fmt.Sprintf("--replicas=%d", replicas), "-o", "json",
			"--namespace", installation.Namespace)
		cmd.Env = append(os.Environ(), "PATH="+r.path, "KUBECONFIG="+kubeconfig)
		// The exit code says that a Pod blocks the plan.
		printed, _ := cmd.Output()
		var planned struct {
			Shards []struct {
				Exact  bool
				Leaves []struct{ Node string }
			}
			Nodes []struct {
				Name string
				Pods []struct{ Blockers []string }
			}
		}
		if err := json.Unmarshal(printed, &planned); err != nil {
			return fmt.Errorf("%w: %s", err, printed)
		}
		var nodes []string
		for _, shard := range planned.Shards {
			for _, instance := range shard.Leaves {
				nodes = append(nodes, instance.Node)
			}
			if !shard.Exact {
				return fmt.Errorf("not exact: %s", printed)
			}
		}
		if len(nodes) != 1 || len(planned.Nodes) != 1 || len(planned.Nodes[0].Pods) != 1 || len(planned.Nodes[0].Pods[0].Blockers) != 1 {
			return fmt.Errorf("planned %s", printed)
		}
		node = nodes[0]
		return nil
	})
	return node
}

// age is a duration or an age as kubectl prints it.
var age = regexp.MustCompile(`\b(\d+[dhms])+\b`)

// connectionError is the error of a connection to a shard. It differs from run to run.
var connectionError = regexp.MustCompile(`(ShardUnreachable: (?:us-west-2b: )?)(?:error reading|connection error|rpc error|read tcp|dial tcp).*`)

// normalize replaces the parts that differ from run to run: names, ages, errors, widths of
// columns, and the order of the instances of a shard.
func normalize(printed string, names []string) string {
	for i, name := range names {
		replacement := "other"
		if i == 0 {
			replacement = "first"
		} else if strings.HasPrefix(name, "pod-") {
			replacement = "pod"
		}
		printed = strings.ReplaceAll(printed, name, replacement)
	}
	printed = connectionError.ReplaceAllString(age.ReplaceAllString(printed, "AGE"), "${1}ERROR")
	lines := strings.Split(printed, "\n")
	begin := 0
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
		if instance := strings.Contains(line, "first") || strings.Contains(line, "other"); instance && strings.Contains(line, "─") {
			lines[i] = strings.NewReplacer("│ ", "", "├─ ", "- ", "└─ ", "- ").Replace(lines[i])
			continue
		}
		slices.Sort(lines[begin:i])
		begin = i + 1
	}
	return strings.Join(lines, "\n")
}
