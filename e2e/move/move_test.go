// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package move

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/runbook"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// operatorFlags are the flags of both operators.
var operatorFlags = []string{"--resync-period", "10s", "--on-demand-namespaces=*"}

// Pools of the test. fixed is another one.
const (
	// plain has no Machines, and machines has.
	plain, machines = "plain", "machines"
	// The replicas of rising and falling change while no operator runs. The instances of starting
	// are being created.
	rising, falling, starting = "rising", "falling", "starting"
)

// single is a Machine of its own, and team the namespace of a Pod that has requested a machine.
const (
	single, team = "single", "team"
	// singles is the number of these machines.
	singles = 2
)

// The objects move to another management cluster and back, while pools are scaled: no instance is
// terminated but those of the pool that the user has scaled down, and the cluster that the objects
// have left does not create them again.
func TestMoveThereAndBack(t *testing.T) {
	at := map[string]int32{plain: 4, machines: 2, rising: 2, falling: 4, starting: 2, fixed: 2}
	for name, replicas := range at {
		pool := testcluster.NewNstanceMachinePool(name, env.ShardIDs...)
		switch name {
		case fixed:
			continue // it is imported
		case machines:
			pool.Spec.MachineMode = v1beta1.MachineModeAlways
		}
		require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	}
	env.CreateMachine(t, single, group, "")
	createPod(t)
	untilRunning(t, env, at)
	before := instances(t)

	t.Run("there, at rest", func(t *testing.T) {
		m := begin(t, env, env.Target)
		m.run(t, nil)
		untilRunning(t, env.Target, at)
		m.expectNoLosses(t, nil)
		assert.Equal(t, before, instances(t))
	})

	t.Run("the operator of the former cluster is started", func(t *testing.T) {
		m := begin(t, env, env.Target)
		startRefused(t)
		m.expectNoLosses(t, nil)
		m.expectEmpty(t)
	})

	t.Run("back, while pools are scaled", func(t *testing.T) {
		m := begin(t, env.Target, env)
		env.Target.Scale(t, starting, 6)
		untilSizes(t, starting, 3)
		m.run(t, func() {
			env.Target.Scale(t, rising, 6)
			env.Target.Scale(t, falling, 2)
		})
		at[starting], at[rising], at[falling] = 6, 6, 2
		untilRunning(t, env, at)
		after := instances(t)
		m.expectNoLosses(t, expectKept(t, before, after, at))
	})

	created := 0
	for _, count := range env.CountCreations(t) {
		created += count
	}
	assert.Equal(t, singles, created, "instances that were requested")
	// Both clusters have their pools from users and from moves only.
	for _, cluster := range both() {
		created := cluster.OperatorWrites(t, 0, func(r controlplane.Request) bool {
			return r.Verb == "create" && r.Code < 400 && slices.Contains([]string{"machinepools", "nstancemachinepools"}, r.Resource) &&
				r.Name != fixed && r.Name != group
		})
		assert.Empty(t, created, "pools that an operator created: %s", testcluster.Describe(created))
	}

	env.Scale(t, plain, 5)
	env.Scale(t, machines, 1)
	at[plain], at[machines] = 5, 1
	untilRunning(t, env, at)
}

// createPod creates a Pod that requests a machine of its own.
func createPod(t *testing.T) {
	t.Helper()
	env.CreateNamespace(t, team)
	_, err := env.NodeKube.CoreV1().Pods(team).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "job", Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group}},
		Spec: corev1.PodSpec{
			NodeSelector:                 map[string]string{installation.LabelPodNamespace: team, installation.LabelPodName: "job"},
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// both returns the two management clusters.
func both() []*testcluster.Cluster { return []*testcluster.Cluster{env, env.Target} }

// untilRunning waits until the pools run with these replicas in a cluster, and the Machines have
// their Nodes.
func untilRunning(t *testing.T, cluster *testcluster.Cluster, at map[string]int32) {
	t.Helper()
	for name, replicas := range at {
		cluster.UntilRunning(t, name, replicas)
	}
	testcluster.Eventually(t, timeout, "the Machines run", func(ctx context.Context) error {
		list, err := cluster.Machines().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if want := int(at[machines]) + singles; len(list.Items) != want {
			return fmt.Errorf("%d Machines, want %d", len(list.Items), want)
		}
		for _, machine := range list.Items {
			if machine.Status.Phase != string(clusterv1.MachinePhaseRunning) {
				return fmt.Errorf("Machine %s is %s", machine.Name, machine.Status.Phase)
			}
		}
		return nil
	})
}

// instance is an instance that the shards have, and its Node.
type instance struct {
	Group string
	Node  types.UID
}

// instances returns the instances of all shards by id.
func instances(t *testing.T) map[string]instance {
	t.Helper()
	nodes, err := env.NodeKube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	uids := map[string]types.UID{}
	for _, node := range nodes.Items {
		uids[node.Name] = node.UID
	}
	found := map[string]instance{}
	for _, shard := range env.ShardIDs {
		records, err := env.Installation.Records(shard)
		require.NoError(t, err)
		for _, record := range records {
			found[record.ID] = instance{record.Group, uids[record.ID]}
		}
	}
	return found
}

// expectKept fails the test if a group has lost more instances than its user wanted, and returns
// the names of the Nodes that were deleted.
func expectKept(t *testing.T, before, after map[string]instance, at map[string]int32) (deleted []string) {
	t.Helper()
	count := map[string]int32{}
	for _, instance := range after {
		count[instance.Group]++
	}
	for name, replicas := range at {
		assert.Equal(t, replicas, count[name], "instances of %s", name)
	}
	assert.EqualValues(t, singles, count[group], "instances of %s", group)
	for id, instance := range before {
		if _, kept := after[id]; !kept && instance.Group == falling {
			deleted = append(deleted, id)
			continue
		}
		assert.Equal(t, instance, after[id], "instance %s", id)
	}
	return deleted
}

// untilSizes waits until each shard has a size of a group.
func untilSizes(t *testing.T, name string, size int32) {
	t.Helper()
	testcluster.Eventually(t, timeout, fmt.Sprintf("each shard has size %d of %s", size, name), func(ctx context.Context) error {
		for _, shard := range env.ShardIDs {
			group, err := env.Group(ctx, shard, name)
			if err != nil {
				return err
			}
			if group.GetSize() != size {
				return fmt.Errorf("shard %s has size %d", shard, group.GetSize())
			}
		}
		return nil
	})
}

// startRefused starts the operator of the first cluster until its shards have refused it, and it
// has created the Cluster again.
func startRefused(t *testing.T) {
	t.Helper()
	testcluster.Start(t, env.OperatorProcess())
	testcluster.Eventually(t, timeout, "the shards refuse the operator", func(ctx context.Context) error {
		for _, shard := range env.ShardIDs {
			refused, err := installation.Metric(ctx, env.Operator.URL(), "nstance_operator_shard_calls_total",
				map[string]string{"shard": shard, "code": "PermissionDenied"})
			if err != nil {
				return err
			}
			if refused < 2 {
				return fmt.Errorf("shard %s has refused %v calls", shard, refused)
			}
		}
		_, err := env.Clusters().Get(ctx, installation.ClusterName, metav1.GetOptions{})
		return err
	})
	require.NoError(t, env.OperatorProcess().Stop(t.Context()))
}

// move is a run of the procedure, and what has happened since it was begun.
type move struct {
	source, target *testcluster.Cluster
	losses         []*testcluster.LossChecker
	// from are the ends of the audit logs by cluster.
	from map[*testcluster.Cluster]controlplane.Position
}

func begin(t *testing.T, source, target *testcluster.Cluster) *move {
	t.Helper()
	m := &move{source: source, target: target, from: map[*testcluster.Cluster]controlplane.Position{}}
	for _, name := range []string{plain, machines, rising, falling, starting, fixed, group} {
		m.losses = append(m.losses, env.NewLossChecker(t, name))
	}
	for _, cluster := range both() {
		m.from[cluster] = cluster.AuditEnd(t)
	}
	return m
}

// run runs the procedure. stopped is called while no operator runs. Optional.
func (m *move) run(t *testing.T, stopped func()) {
	t.Helper()
	tools := env.Tools(t)
	var err error
	tools.Programs[clusterctlName], err = os.Executable()
	require.NoError(t, err)
	key, err := env.Installation.EncryptionKey()
	require.NoError(t, err)
	p := runbook.StartProcedure(t, "Move a tenant", tools, map[string]string{
		"NAMESPACE":              installation.Namespace,
		"TENANT":                 installation.Tenant,
		"SOURCE":                 m.source.KubeconfigPath(),
		"TARGET":                 m.target.KubeconfigPath(),
		"REPLICAS":               "0", // The operators are processes.
		"STORAGE":                "--storage file --storage-bucket " + env.Installation.Bucket(),
		"NSTANCE_ENCRYPTION_KEY": key,
	})
	p.Do("[Install](../install.md#install) Cluster API and the operator", func() {})
	p.Run("Look for objects that are being deleted")
	p.Run("Stop the operator of the source cluster")
	require.NoError(t, m.source.OperatorProcess().Stop(t.Context()))
	if stopped != nil {
		stopped()
	}
	p.Run("Give the tenant to the target cluster")
	p.Run("Move the objects")
	m.expectEmpty(t)
	p.Run("Give the operator of the target cluster a nonce")
	if m.target.OperatorProcess() == nil {
		require.NoError(t, m.target.StartOperator(t.Context(), operatorFlags...))
	} else {
		testcluster.Start(t, m.target.OperatorProcess())
	}
	p.Run("Wait until the shards serve it")
}

// expectEmpty fails the test if the source cluster has an object that creates or keeps instances.
func (m *move) expectEmpty(t *testing.T) {
	t.Helper()
	left := m.source.Kubectl(t, "get", "-o", "name", "--ignore-not-found",
		"machinedeployments,machinesets,machinepools,machines,nstancemachinepools,nstanceshardgroups,nstancemachines")
	assert.Empty(t, left, "objects of the source cluster")
}

// expectNoLosses fails the test for every request to terminate an instance, and for every deletion
// of a Node but those that were to be deleted, or of an object in the target cluster.
func (m *move) expectNoLosses(t *testing.T, deleted []string) {
	t.Helper()
	for _, checker := range m.losses {
		losses, _ := checker.Losses(t)
		for _, loss := range losses {
			if checker.Group != falling || len(deleted) == 0 || !strings.Contains(loss, installation.UpsertGroup) {
				t.Error(loss)
			}
		}
	}
	for _, cluster := range both() {
		unexpected := cluster.Requests(t, m.from[cluster], func(r controlplane.Request) bool {
			switch {
			case r.Subresource == "eviction":
				return true
			case r.Resource == "nodes":
				return testcluster.IsDeletion(r) && !slices.Contains(deleted, r.Name)
			default:
				return testcluster.IsDeletion(r) && cluster == m.target
			}
		})
		assert.Empty(t, unexpected, "deletions: %s", testcluster.Describe(unexpected))
	}
}
