// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/testing/tier"
)

// member is a member of etcd.
type member struct {
	ID      uint64
	Name    string
	Learner bool
	Leader  bool
}

// members returns the members of etcd by the name of their Node. A machine of the control plane asks etcd.
func (c *Cluster) members(ctx context.Context) (map[string]member, error) {
	machines, err := c.options.Docker.Nodes(ctx, c.options.Shards...)
	if err != nil {
		return nil, err
	}
	err = errors.New("there is no machine of the control plane")
	for _, machine := range machines {
		if machine.Labels[docker.LabelGroup] != ControlPlaneGroup || machine.State != "running" {
			continue
		}
		var members map[string]member
		if members, err = c.membersFrom(ctx, machine.ID); err == nil {
			return members, nil
		}
	}
	return nil, err
}

func (c *Cluster) membersFrom(ctx context.Context, machine string) (map[string]member, error) {
	etcdctl := func(into any, arguments ...string) error {
		const pki = "/etc/kubernetes/pki/etcd/"
		output, err := exec.CommandContext(ctx, "docker", append([]string{
			"--host", c.options.Docker.Address, "exec", machine, "etcdctl", "--cacert", pki + "ca.crt", "--cert", pki + "healthcheck-client.crt", "--key", pki + "healthcheck-client.key",
			"--endpoints", "https://127.0.0.1:2379", "--write-out", "json",
		}, arguments...)...).Output()
		if err != nil {
			return fmt.Errorf("run etcdctl %s in machine %s: %w", arguments, machine, err)
		}
		return json.Unmarshal(output, into)
	}
	var list struct {
		Members []struct {
			ID        uint64
			Name      string
			IsLearner bool
		}
	}
	if err := etcdctl(&list, "member", "list"); err != nil {
		return nil, err
	}
	var statuses []struct {
		Status struct {
			Leader uint64 `json:"leader"`
		}
	}
	if err := etcdctl(&statuses, "endpoint", "status"); err != nil {
		return nil, err
	}
	members := map[string]member{}
	for _, m := range list.Members {
		members[m.Name] = member{ID: m.ID, Name: m.Name, Learner: m.IsLearner, Leader: len(statuses) == 1 && statuses[0].Status.Leader == m.ID}
	}
	return members, nil
}

// leaderOfEtcd returns the members of etcd, one on each shard, and the Node of their leader.
func (c *Cluster) leaderOfEtcd(t *testing.T) (map[string]member, *corev1.Node) {
	t.Helper()
	members, err := c.members(t.Context())
	require.NoError(t, err)
	require.Len(t, members, len(c.options.Shards))
	for name, m := range members {
		if m.Leader {
			node, err := c.Kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			require.NoError(t, err)
			return members, node
		}
	}
	require.Fail(t, "etcd has no leader", members)
	return nil, nil
}

// complete returns an error unless etcd has exactly one voting member on each machine of the control plane.
func (c *Cluster) complete(ctx context.Context) error {
	members, err := c.members(ctx)
	if err != nil {
		return err
	}
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "nstance.dev/group=" + ControlPlaneGroup})
	if err != nil {
		return err
	}
	shards := map[string]bool{}
	for _, node := range nodes.Items {
		if m, found := members[node.Name]; !found || m.Learner {
			return fmt.Errorf("Node %s has no voting member of etcd: %v", node.Name, members)
		}
		shards[node.Labels["nstance.dev/shard"]] = true
	}
	if len(members) != len(c.options.Shards) || len(nodes.Items) != len(members) || len(shards) != len(members) {
		return fmt.Errorf("etcd has %d members on %d Nodes of %d shards, want one on each of %d shards", len(members), len(nodes.Items), len(shards), len(c.options.Shards))
	}
	return c.ready(ControlPlaneGroup, len(members))(ctx)
}

// traffic is a client that reads and writes through the load balancer. It repeats a request whose connection
// breaks, as each client of Kubernetes does, and no other.
type traffic struct {
	client  kubernetes.Interface
	stop    context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// reads counts those that succeeded, and written has the names of the writes that did.
	reads   int
	written map[string]bool
	// broken counts requests whose connection broke, and lost writes that failed because another leader of etcd followed.
	broken, lost int
	failed       []string
}

const trafficNamespace = "traffic"

func (c *Cluster) startTraffic(t *testing.T) *traffic {
	t.Helper()
	config := rest.CopyConfig(c.Config)
	config.QPS, config.Burst, config.Timeout = 20, 1, 30*time.Second
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = c.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trafficNamespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	load := &traffic{client: client, stop: stop, written: map[string]bool{}}
	t.Cleanup(load.end)
	load.running.Go(func() {
		load.repeat(ctx, func(string) error {
			_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
			return err
		}, func(string) { load.reads++ })
	})
	load.running.Go(func() {
		load.repeat(ctx, func(name string) error {
			_, err := client.CoreV1().ConfigMaps(trafficNamespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			switch {
			case apierrors.IsAlreadyExists(err):
				// The connection broke after the write.
				return nil
			case err != nil && (strings.Contains(err.Error(), "etcdserver: request timed out") || strings.Contains(err.Error(), "raft proposal dropped")):
				return fmt.Errorf("%w: %w", errLost, err)
			}
			return err
		}, func(name string) { load.written[name] = true })
	})
	return load
}

// errLost is the error of a write that the leader of etcd had when it was lost, of which the API server cannot say
// whether it was stored, or that arrived while it handed over to another leader, which refuses it.
var errLost = errors.New("the write was lost with the leader of etcd")

// repeat makes requests until the context is done, each until it has an answer. The client limits their rate.
func (load *traffic) repeat(ctx context.Context, request func(name string) error, succeeded func(name string)) {
	for number, name := 0, "0"; ; name = strconv.Itoa(number) {
		err := request(name)
		if ctx.Err() != nil {
			return
		}
		load.mu.Lock()
		var status apierrors.APIStatus
		number++
		switch {
		case err == nil:
			succeeded(name)
		case errors.Is(err, errLost):
			load.lost++
		case errors.As(err, &status):
			load.failed = append(load.failed, fmt.Sprintf("%s %s: %v", time.Now().Format(time.TimeOnly), name, err))
		default:
			load.broken++
			number--
		}
		load.mu.Unlock()
	}
}

func (load *traffic) end() {
	load.stop()
	load.running.Wait()
}

// counts returns the requests that succeeded.
func (load *traffic) counts() (reads, writes int) {
	load.mu.Lock()
	defer load.mu.Unlock()
	return load.reads, len(load.written)
}

// expectServed ends the traffic, in which machines left, and leaders of etcd followed each other. It expects that no
// request failed but a write for each change of the leader, and that each write that succeeded is stored. At each
// loss the requests of both clients may break twice: the second time if the load balancer does not know yet.
func (load *traffic) expectServed(t *testing.T, machines, leaders int) {
	t.Helper()
	load.end()
	t.Logf("%d reads and %d writes succeeded, %d requests were repeated because their connection broke, %d writes failed with a leader, %d requests failed",
		load.reads, len(load.written), load.broken, load.lost, len(load.failed))
	assert.Empty(t, load.failed)
	assert.LessOrEqual(t, load.lost, leaders)
	assert.LessOrEqual(t, load.broken, 4*machines, "the API server was away")
	list, err := load.client.CoreV1().ConfigMaps(trafficNamespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, stored := range list.Items {
		delete(load.written, stored.Name)
	}
	assert.Empty(t, load.written, "writes that succeeded and are not stored")
}

// kill removes a machine at once, as the loss of its host does.
func (c *Cluster) kill(t *testing.T, name string) {
	t.Helper()
	machine, found := c.machinesByID(t)[name]
	require.True(t, found, "machine %s", name)
	_, err := c.options.Docker.Client.ContainerRemove(t.Context(), machine, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	require.NoError(t, err)
}

// A control plane with a machine on each of three shards serves while each shard's machine is lost or replaced:
// no request fails, no write is lost, and etcd has three members again without a person.
func TestControlPlaneOfThreeMachines(t *testing.T) {
	if !tier.Full() {
		t.Skipf("%s is not set (make test-full)", tier.FullVariable)
	}
	c := start(t, func(o *Options) { o.Replicated = true })
	count := len(c.options.Shards)
	until(t, startTimeout, "the API server is ready", func(ctx context.Context) error {
		_, err := c.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	until(t, startTimeout, "the control plane has three machines", c.complete)
	until(t, startTimeout, "the Nodes are ready", c.ready(SystemGroup, count-1))
	until(t, startTimeout, "Cluster API is available", c.available(capiNamespace, "capi-controller-manager", 1))
	until(t, startTimeout, "the operator is available", c.available(installation.Namespace, "nstance-operator", 2))
	until(t, startTimeout, "the control plane is imported", c.pool(ControlPlaneGroup, int64(count)))
	c.logMemory(t)
	namespace, err := c.Kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	load := c.startTraffic(t)
	until(t, stepTimeout, "the API server serves traffic", func(context.Context) error {
		if reads, writes := load.counts(); reads == 0 || writes == 0 {
			return fmt.Errorf("%d reads and %d writes succeeded", reads, writes)
		}
		return nil
	})

	// Also if a machine is not replaced.
	defer load.expectServed(t, 2, 2)

	// The machine with the leader of etcd is killed: the others elect another leader.
	before, leader := c.leaderOfEtcd(t)
	c.kill(t, leader.Name)
	until(t, stepTimeout, "another machine replaced the killed one", c.replaced(before, leader.Name))

	// The machine with the leader is replaced because its group gets another instance type: another member leads
	// before it leaves, and no fourth member remains.
	before, leader = c.leaderOfEtcd(t)
	c.reconfigure(t, leader.Labels["nstance.dev/shard"], func(configuration object) {
		groups := configuration["groups"].(object)[installation.Tenant].(object)
		groups[ControlPlaneGroup].(object)["instance_type"] = "large.amd64"
	})
	until(t, stepTimeout, "another machine replaced the outdated one", c.replaced(before, leader.Name))
	until(t, stepTimeout, "the pool has three ready replicas", c.pool(ControlPlaneGroup, int64(count)))

	after, err := c.Kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, namespace.UID, after.UID, "it is another cluster")
	c.logMemory(t)
}

// replaced returns an error unless the control plane is complete, with another machine instead of one, and the
// others as they were.
func (c *Cluster) replaced(before map[string]member, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := c.complete(ctx); err != nil {
			return err
		}
		after, err := c.members(ctx)
		if err != nil {
			return err
		}
		for _, m := range before {
			if now, found := after[m.Name]; found == (m.Name == name) || found && now.ID != m.ID {
				return fmt.Errorf("etcd has members %v, had %v, and %s was to be replaced", after, before, name)
			}
		}
		return nil
	}
}

// logMemory logs the memory of each machine.
func (c *Cluster) logMemory(t *testing.T) {
	t.Helper()
	for id, machine := range c.machinesByID(t) {
		stats, err := c.options.Docker.Client.ContainerStats(t.Context(), machine, client.ContainerStatsOptions{})
		require.NoError(t, err)
		var usage struct {
			Memory struct {
				Usage int64            `json:"usage"`
				Stats map[string]int64 `json:"stats"`
			} `json:"memory_stats"`
		}
		require.NoError(t, json.NewDecoder(stats.Body).Decode(&usage))
		require.NoError(t, stats.Body.Close())
		t.Logf("machine %s: %d MiB", id, (usage.Memory.Usage-usage.Memory.Stats["total_inactive_file"])>>20)
	}
}
