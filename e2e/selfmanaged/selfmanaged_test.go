// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/rights"
)

// enabled is the environment variable without which the test is skipped: make test-selfmanaged sets it.
const enabled = "NSTANCE_TEST_MACHINES"

// Times that are generous on a machine with two busy processors.
const (
	startTimeout = 10 * time.Minute
	stepTimeout  = 5 * time.Minute
)

var (
	machinePools        = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machinepools"}
	nstanceMachinePools = schema.GroupVersionResource{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1", Resource: "nstancemachinepools"}
)

// start starts the cluster, with options that may be changed.
func start(t *testing.T, changes ...func(*Options)) *Cluster {
	t.Helper()
	options := prepare(t)
	for _, change := range changes {
		change(&options)
	}
	return startWith(t, options)
}

// prepare returns the options of clusters.
func prepare(t *testing.T) Options {
	t.Helper()
	if os.Getenv(enabled) == "" {
		t.Skipf("%s is not set (make test-selfmanaged)", enabled)
	}
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	options, release, err := Prepare(t.Context(), root, "", os.Stderr)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, release()) })
	return options
}

// startWith starts a cluster with its state in a folder of its own.
func startWith(t *testing.T, options Options) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "nstance-selfmanaged-")
	require.NoError(t, err)
	options.Dir = dir
	c, err := Start(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, c.Close(t.Context()))
		if !t.Failed() {
			assert.NoError(t, os.RemoveAll(dir))
		}
	})
	return c
}

// until waits until a condition holds, and fails the test with its last error after a time.
func until(t *testing.T, timeout time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	begin := time.Now()
	for {
		err := condition(ctx)
		if err == nil {
			t.Logf("%s after %s", what, time.Since(begin).Round(100*time.Millisecond))
			return
		}
		select {
		case <-ctx.Done():
			require.NoError(t, err, what)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// ready returns an error unless exactly this many Nodes of a group are there, and all are ready.
func (c *Cluster) ready(group string, count int) func(context.Context) error {
	return func(ctx context.Context) error {
		nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "nstance.dev/group=" + group})
		if err != nil {
			return err
		}
		ready := 0
		for _, node := range nodes.Items {
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if len(nodes.Items) != count || ready != count {
			return fmt.Errorf("%d of %d Nodes of group %s are ready, want %d", ready, len(nodes.Items), group, count)
		}
		return nil
	}
}

// available returns an error unless all replicas of a Deployment are available.
func (c *Cluster) available(namespace, name string, replicas int32) func(context.Context) error {
	return func(ctx context.Context) error {
		deployment, err := c.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := deployment.Status.AvailableReplicas; got != replicas {
			return fmt.Errorf("%d replicas of %s are available, want %d", got, name, replicas)
		}
		return nil
	}
}

// pool returns an error unless a MachinePool has replicas that are ready.
func (c *Cluster) pool(name string, replicas int64) func(context.Context) error {
	return func(ctx context.Context) error {
		client, err := dynamic.NewForConfig(c.Config)
		if err != nil {
			return err
		}
		pool, err := client.Resource(machinePools).Namespace(installation.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedInt64(pool.Object, "status", "readyReplicas"); got != replicas {
			return fmt.Errorf("%d replicas of pool %s are ready, want %d", got, name, replicas)
		}
		return nil
	}
}

// leader returns the Pod of the operator that leads, and its Node.
func (c *Cluster) leader(ctx context.Context) (pod, node string, err error) {
	lease, err := c.Kube.CoordinationV1().Leases(installation.Namespace).Get(ctx, "nstance-operator-leader-election", metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", "", errors.New("no operator leads")
	}
	name, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	holder, err := c.Kube.CoreV1().Pods(installation.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	return holder.Name, holder.Spec.NodeName, nil
}

// reconfigure changes the configuration that the server of a shard reads.
func (c *Cluster) reconfigure(t *testing.T, shard string, change func(object)) {
	t.Helper()
	path := c.storedConfiguration(shard)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	configuration := object{}
	require.NoError(t, json.Unmarshal(data, &configuration))
	change(configuration)
	data, err = json.Marshal(configuration)
	require.NoError(t, err)
	require.NoError(t, writeFile(path+".new", data))
	require.NoError(t, os.Rename(path+".new", path))
}

// scale sets the replicas of a MachinePool whose machines join with a certificate, and creates it with its
// NstanceMachinePool if it does not exist.
func (c *Cluster) scale(t *testing.T, name string, replicas int64) {
	t.Helper()
	c.scaleTemplate(t, name, certificateTemplate, replicas)
}

// scaleTemplate is scale for machines of another template.
func (c *Cluster) scaleTemplate(t *testing.T, name, template string, replicas int64) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Config)
	require.NoError(t, err)
	apply := func(resource schema.GroupVersionResource, o object) {
		data, err := json.Marshal(o)
		require.NoError(t, err)
		// The API server of a control plane that was replaced reaches the webhooks when kube-proxy has
		// their Services.
		until(t, stepTimeout, fmt.Sprintf("%s %s is applied", resource.Resource, name), func(ctx context.Context) error {
			_, err := client.Resource(resource).Namespace(installation.Namespace).
				Patch(ctx, name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: "test"})
			return err
		})
	}
	metadata := object{"name": name, "namespace": installation.Namespace}
	apply(machinePools, object{
		"apiVersion": machinePools.GroupVersion().String(), "kind": "MachinePool", "metadata": metadata,
		"spec": object{"clusterName": installation.ClusterName, "replicas": replicas, "template": object{"spec": object{
			"clusterName": installation.ClusterName, "bootstrap": object{"dataSecretName": ""},
			"infrastructureRef": object{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "NstanceMachinePool", "name": name},
		}}},
	})
	apply(nstanceMachinePools, object{
		"apiVersion": nstanceMachinePools.GroupVersion().String(), "kind": "NstanceMachinePool", "metadata": metadata,
		"spec": object{"group": name, "template": template, "shards": c.options.Shards[1:]},
	})
}

// rejected returns an error unless the operator's webhook rejects a pool on a shard that is not configured.
func (c *Cluster) rejected(ctx context.Context) error {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return err
	}
	pool := &unstructured.Unstructured{Object: object{
		"apiVersion": nstanceMachinePools.GroupVersion().String(), "kind": "NstanceMachinePool", "metadata": object{"name": "nowhere"},
		"spec": object{"group": "nowhere", "template": "worker", "shards": []any{"us-west-9z"}},
	}}
	_, err = client.Resource(nstanceMachinePools).Namespace(installation.Namespace).Create(ctx, pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil || !strings.Contains(err.Error(), `"nstancemachinepools.nstance.dev" denied the request`) {
		return fmt.Errorf("the pool was not rejected: %v", err) //nolint:errorlint // it may be nil
	}
	return nil
}

// expectRights expects that the Pods of the operator and of Cluster API have the rights that they have used,
// and that nothing was refused that they need.
func (c *Cluster) expectRights(t *testing.T) {
	t.Helper()
	log := controlplane.AuditLog(filepath.Join(c.volume(auditVolume), "audit.log"))
	require.NoError(t, rights.Record("selfmanaged", log, installation.OperatorUser, filepath.Join(c.options.Root, "manifests")))
	for _, user := range []string{installation.OperatorUser, capiUser} {
		requests, err := log.Requests(0, func(r controlplane.Request) bool { return r.User == user })
		require.NoError(t, err)
		allowed := map[string]bool{}
		for _, request := range requests {
			if strings.HasPrefix(request.Reason, "RBAC: allowed") {
				allowed[request.Action()] = true
			}
		}
		assert.NotEmpty(t, allowed, user)
		for _, request := range requests {
			// An API server that has just started may refuse others, before it has read the roles.
			if request.Reason == "" && request.Code == http.StatusForbidden {
				assert.True(t, allowed[request.Action()], "%s was refused to %s %s/%s", user, request.Action(), request.Namespace, request.Name)
			}
		}
	}
}

// From an empty bucket, the shards create the control plane and the Nodes, on which Cluster API and the
// operator run, which then manage them. The operator outlives the Node of its leader, and the cluster the
// machine of its control plane.
func TestClusterManagesItself(t *testing.T) {
	c := start(t)
	workers := len(c.options.Shards) - 1
	until(t, startTimeout, "the API server is ready", func(ctx context.Context) error {
		_, err := c.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	until(t, startTimeout, "the Nodes are ready", c.ready(SystemGroup, workers))
	until(t, startTimeout, "the control plane is ready", c.ready(ControlPlaneGroup, 1))
	until(t, startTimeout, "Cluster API is available", c.available(capiNamespace, "capi-controller-manager", 1))
	until(t, startTimeout, "the operator is available", c.available(installation.Namespace, "nstance-operator", 2))
	until(t, startTimeout, "the groups are imported", c.pool(SystemGroup, int64(workers)))
	until(t, startTimeout, "the control plane is imported", c.pool(ControlPlaneGroup, 1))

	// Each replica is on a Node of its own.
	pods, err := c.Kube.CoreV1().Pods(installation.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=nstance-operator"})
	require.NoError(t, err)
	nodes := map[string]bool{}
	for _, pod := range pods.Items {
		nodes[pod.Spec.NodeName] = true
	}
	assert.Len(t, nodes, 2)

	// Machines join with a certificate of their own: there is no bootstrap token.
	until(t, stepTimeout, "there is no bootstrap token", func(ctx context.Context) error {
		secrets, err := c.Kube.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
		if err == nil && len(secrets.Items) > 0 {
			err = fmt.Errorf("there are %d", len(secrets.Items))
		}
		return err
	})

	until(t, stepTimeout, "the API server calls the webhook by its Service", c.rejected)

	c.scale(t, "workers", 2)
	until(t, stepTimeout, "two workers joined", c.ready("workers", 2))
	c.expectOwnCertificates(t, "workers", 2)
	c.expectJoinWithAToken(t)
	c.scale(t, "workers", 0)
	until(t, stepTimeout, "the workers left", c.ready("workers", 0))

	// The Node of the leader is replaced, because its group gets another instance type.
	before, node, err := c.leader(t.Context())
	require.NoError(t, err)
	leaderNode, err := c.Kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	require.NoError(t, err)
	c.reconfigure(t, leaderNode.Labels["nstance.dev/shard"], func(configuration object) {
		groups := configuration["groups"].(object)[installation.Tenant].(object)
		groups[SystemGroup].(object)["instance_type"] = "large.amd64"
	})
	until(t, stepTimeout, "another Node replaced that of the leader", func(ctx context.Context) error {
		if _, err := c.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil {
			return fmt.Errorf("Node %s exists", node)
		}
		return c.ready(SystemGroup, workers)(ctx)
	})
	until(t, stepTimeout, "another operator leads", func(ctx context.Context) error {
		after, _, err := c.leader(ctx)
		if err == nil && after == before {
			err = fmt.Errorf("%s leads", after)
		}
		return err
	})
	until(t, stepTimeout, "both operators are available", c.available(installation.Namespace, "nstance-operator", 2))

	// The machine of the control plane is killed: another one gets its data.
	uid := func(ctx context.Context) (types.UID, error) {
		namespace, err := c.Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return namespace.UID, nil
	}
	was, err := uid(t.Context())
	require.NoError(t, err)
	machines, err := c.options.Docker.Nodes(t.Context(), c.options.Shards[0])
	require.NoError(t, err)
	require.Len(t, machines, 1)
	_, err = c.options.Docker.Client.ContainerRemove(t.Context(), machines[0].ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	require.NoError(t, err)
	until(t, stepTimeout, "the API server is back", func(ctx context.Context) error {
		now, err := uid(ctx)
		if err == nil && now != was {
			err = fmt.Errorf("it is another cluster: %s was %s", now, was)
		}
		return err
	})
	until(t, stepTimeout, "the control plane is one Node again", c.ready(ControlPlaneGroup, 1))
	until(t, stepTimeout, "an operator leads", func(ctx context.Context) error {
		_, _, err := c.leader(ctx)
		return err
	})
	c.scale(t, "workers", 1)
	until(t, stepTimeout, "a worker joined the replaced control plane", c.ready("workers", 1))
	c.expectRights(t)
}
