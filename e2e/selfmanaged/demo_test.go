// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
)

const (
	demoNamespace = "nstance-servers"
	// demoPool is the pool that the operator imports, and demoShards the number of its shards.
	demoPool   = "workers"
	demoShards = 3
)

// The commands of docs/install.md#on-your-own-cluster, from nothing to a pool that was scaled, with the servers
// of the demo as Pods of restricted namespaces.
func testDemo(t *testing.T, c *Cluster, r *release) {
	r.forget()
	c.untilClusterAPI(t)
	c.startKWOK(t)
	c.createDefaultStorage(t)
	blocks := c.demoCommands(t, r)

	printed := c.shell(t, blocks[0])
	assert.NotContains(t, printed, "Warning")
	t.Log(printed)
	until(t, startTimeout, "the pool is imported", c.pool(demoPool, demoShards))
	c.expectOperator(t, r)
	c.expectRestricted(t, demoNamespace)
	c.expectPulled(t, r, demoNamespace, "app.kubernetes.io/part-of=nstance-demo", "nstance-admin", "nstance-server")

	printed = c.shell(t, blocks[1])
	assert.Contains(t, printed, "machinepool.cluster.x-k8s.io/workers scaled\n")
	until(t, stepTimeout, "the simulated Nodes are ready", c.ready(demoPool, 10))
	until(t, stepTimeout, "the pool is ready", c.pool(demoPool, 10))
	assert.Equal(t, 10, strings.Count(c.shell(t, "kubectl get nodes -l nstance.dev/managed=true -o name"), "node/"))
	c.shell(t, "kubectl -n nstance-system scale machinepool workers --replicas=3")
	until(t, stepTimeout, "simulated Nodes left", c.ready(demoPool, demoShards))
	// The Nodes of the machines are not the demo's.
	require.NoError(t, c.ready(SystemGroup, len(c.options.Shards)-1)(t.Context()))
}

// demoCommands returns the commands that install the demo, and those that try it. The images are those of a
// release.
func (c *Cluster) demoCommands(t *testing.T, r *release) []string {
	t.Helper()
	require.NoError(t, inputs.Check(inputs.Docs))
	text, err := os.ReadFile(filepath.Join(c.options.Root, inputs.Docs, "install.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n### On your own cluster\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n### ")
	blocks := strings.Split(section, "```sh\n")
	require.Len(t, blocks, 4, "prerequisites, installation, trial")
	for i := range blocks {
		blocks[i], _, _ = strings.Cut(blocks[i], "```")
	}
	const source = "-k manifests/demo\n"
	require.Contains(t, blocks[2], source)
	blocks[2] = strings.Replace(blocks[2], source, "-f "+filepath.Join(r.dir, "manifests", releaseVersion, "demo.yaml")+"\n", 1)
	return blocks[2:]
}

// startKWOK runs kwok as its kwok.yaml and stage-fast.yaml have it, beside the cluster: no image has it.
func (c *Cluster) startKWOK(t *testing.T) {
	t.Helper()
	builder := controlplane.Builder{Root: c.options.Root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(t.Context())
	require.NoError(t, err)
	stages, err := controlplane.Render(filepath.Join(binaries.KWOKModule, "kustomize", "stage", "fast"))
	require.NoError(t, err)
	var text bytes.Buffer
	for _, stage := range stages {
		data, err := yaml.Marshal(stage.Object)
		require.NoError(t, err)
		text.WriteString("---\n")
		text.Write(data)
	}
	path := filepath.Join(c.options.Dir, "stages.yaml")
	require.NoError(t, writeFile(path, text.Bytes()))
	var port int
	require.NoError(t, controlplane.FillInPorts([]*int{&port}))
	server := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	kwok := controlplane.NewComponent(c.options.Dir, controlplane.Spec{
		Name: "kwok",
		Argv: []string{
			binaries.KWOK, "--kubeconfig=" + c.kubeconfig(t), "--config=" + path, "--server-address=" + server,
			"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40",
		},
		Ports: []int{port},
		Ready: controlplane.Probe{URL: "http://" + server + "/healthz"},
	})
	require.NoError(t, kwok.Start(t.Context()))
	t.Cleanup(func() { assert.NoError(t, kwok.Stop(t.Context())) })
}

// createDefaultStorage creates a default StorageClass with a volume in a folder of a Node.
func (c *Cluster) createDefaultStorage(t *testing.T) {
	t.Helper()
	const class, folder = "standard", "/var/lib/demo"
	node := c.nodes(t, SystemGroup, len(c.options.Shards)-1)[0]
	c.runIn(t, c.machinesByID(t)[node], "mkdir", "-p", folder)
	_, err := c.Kube.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: class, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.Kube.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "demo"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Mi")},
			StorageClassName:       class,
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: folder}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}
