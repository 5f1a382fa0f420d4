// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package demo tests manifests/demo.
package demo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
	"nstance.dev/operator/pkg/admin"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
)

// namespace is the namespace of the servers.
const namespace = "nstance-servers"

var shards = []string{"us-west-2a", "us-west-2b", "us-west-2c"}

// demo are the objects of manifests/demo in the namespace of the servers.
type demo struct {
	deployments map[string]*appsv1.Deployment
	services    map[string]*corev1.Service
	configMaps  map[string]*corev1.ConfigMap
	job         *batchv1.Job
	role        *rbacv1.ClusterRole
	binding     *rbacv1.ClusterRoleBinding
	// names are the names of all objects, by kind and namespace.
	names map[string][]string
}

// render builds the kustomization. A field that a kind does not have is an error.
func render(t *testing.T) demo {
	t.Helper()
	list, err := controlplane.Render(filepath.Join(root(t), "manifests", "demo"))
	require.NoError(t, err)
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	d := demo{
		deployments: map[string]*appsv1.Deployment{}, services: map[string]*corev1.Service{},
		configMaps: map[string]*corev1.ConfigMap{}, names: map[string][]string{},
	}
	for _, object := range list {
		key := object.GetKind() + "/" + object.GetNamespace()
		d.names[key] = append(d.names[key], object.GetName())
		if scheme.Scheme.Recognizes(object.GroupVersionKind()) {
			d.add(t, decode(t, decoder, object))
		}
	}
	return d
}

func decode(t *testing.T, decoder runtime.Decoder, object *unstructured.Unstructured) runtime.Object {
	t.Helper()
	data, err := object.MarshalJSON()
	require.NoError(t, err)
	decoded, _, err := decoder.Decode(data, nil, nil)
	require.NoError(t, err, "%s %s", object.GetKind(), object.GetName())
	return decoded
}

func (d *demo) add(t *testing.T, object runtime.Object) {
	t.Helper()
	accessor, err := meta.Accessor(object)
	require.NoError(t, err)
	if accessor.GetNamespace() != namespace && accessor.GetName() != "nstance-demo-server" {
		return // the operator has it
	}
	switch o := object.(type) {
	case *appsv1.Deployment:
		d.deployments[o.Name] = o
	case *corev1.Service:
		d.services[o.Name] = o
	case *corev1.ConfigMap:
		d.configMaps[o.Name] = o
	case *batchv1.Job:
		d.job = o
	case *rbacv1.ClusterRole:
		d.role = o
	case *rbacv1.ClusterRoleBinding:
		d.binding = o
	}
}

func root(t *testing.T) string {
	t.Helper()
	require.NoError(t, inputs.Check(inputs.Manifests))
	folder, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	return folder
}

// The demo has the objects of the operator, and a server for each shard.
func TestDemoHasOperatorAndServers(t *testing.T) {
	d := render(t)
	assert.Contains(t, d.names["Deployment/nstance-system"], "nstance-operator")
	assert.ElementsMatch(t, []string{"nstance-system", "nstance-servers"}, d.names["Namespace/"])
	assert.Len(t, d.names["CustomResourceDefinition/"], 5)
	require.Len(t, d.deployments, len(shards))
	require.Len(t, d.services, len(shards))
	for _, shard := range shards {
		deployment, service := d.deployments["nstance-server-"+shard], d.services["nstance-server-"+shard]
		require.NotNil(t, deployment, shard)
		require.NotNil(t, service, shard)
		pod := deployment.Spec.Template.Labels
		for _, other := range shards {
			selected := metav1.SetAsLabelSelector(d.services["nstance-server-"+other].Spec.Selector)
			selector, err := metav1.LabelSelectorAsSelector(selected)
			require.NoError(t, err)
			assert.Equal(t, other == shard, selector.Matches(labels.Set(pod)), "the Service of %s selects the server of %s", other, shard)
			selector, err = metav1.LabelSelectorAsSelector(d.deployments["nstance-server-"+other].Spec.Selector)
			require.NoError(t, err)
			assert.Equal(t, other == shard, selector.Matches(labels.Set(pod)), "the Deployment of %s selects the server of %s", other, shard)
		}
		assert.Equal(t, []string{"--storage=file", "--bucket=/data/bucket", "--cache-dir=/cache", "--shard=" + shard}, deployment.Spec.Template.Spec.Containers[0].Args)
		assert.Equal(t, corev1.ServiceTypeClusterIP, service.Spec.Type)
	}
}

// pods returns the templates of the Pods of the servers and of the Job.
func (d *demo) pods() map[string]corev1.PodTemplateSpec {
	pods := map[string]corev1.PodTemplateSpec{"Job": d.job.Spec.Template}
	for name, deployment := range d.deployments {
		pods[name] = deployment.Spec.Template
	}
	return pods
}

// Pods are on the Node of the volume, refer to objects that exist, have what their mounts name, and are
// as restricted as their namespace requires.
func TestPodsCanStart(t *testing.T) {
	d := render(t)
	for name, template := range d.pods() {
		spec := template.Spec
		volumes := map[string]bool{}
		for _, volume := range spec.Volumes {
			volumes[volume.Name] = true
			switch {
			case volume.PersistentVolumeClaim != nil:
				assert.Contains(t, d.names["PersistentVolumeClaim/"+namespace], volume.PersistentVolumeClaim.ClaimName, name)
			case volume.ConfigMap != nil:
				assert.Contains(t, d.names["ConfigMap/"+namespace], volume.ConfigMap.Name, name)
			default:
				assert.NotNil(t, volume.EmptyDir, "%s: %s", name, volume.Name)
			}
		}
		assert.Equal(t, int64(65532), *spec.SecurityContext.FSGroup, name)
		assert.True(t, *spec.SecurityContext.RunAsNonRoot, name)
		assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, spec.SecurityContext.SeccompProfile.Type, name)
		terms := spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		require.Len(t, terms, 1, name)
		selector, err := metav1.LabelSelectorAsSelector(terms[0].LabelSelector)
		require.NoError(t, err)
		for other, pod := range d.pods() {
			assert.True(t, selector.Matches(labels.Set(pod.Labels)), "%s may be on another Node than %s", name, other)
		}
		for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
			assert.Empty(t, container.EnvFrom, name)
			assert.Equal(t, "demo", container.Image[strings.LastIndex(container.Image, ":")+1:], name)
			assert.Equal(t, []corev1.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop, name)
			assert.False(t, *container.SecurityContext.AllowPrivilegeEscalation, name)
			assert.True(t, *container.SecurityContext.ReadOnlyRootFilesystem, name)
			for _, mount := range container.VolumeMounts {
				assert.True(t, volumes[mount.Name], "%s: volume %s", name, mount.Name)
			}
		}
		if name != "Job" {
			assert.Contains(t, d.names["ServiceAccount/"+namespace], spec.ServiceAccountName, name)
			assert.True(t, *spec.AutomountServiceAccountToken, name)
		}
	}
	require.Len(t, d.binding.Subjects, 1)
	assert.Equal(t, rbacv1.Subject{Kind: "ServiceAccount", Name: "nstance-server", Namespace: namespace}, d.binding.Subjects[0])
	assert.Equal(t, d.role.Name, d.binding.RoleRef.Name)
	// docs/server-reference.md#providers
	assert.Equal(t, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"create", "delete", "get", "list", "watch"}}}, d.role.Rules)
}

// inFolder returns arguments with the folders of the Pods below a folder.
func inFolder(folder string, args []string) []string {
	var replaced []string
	for _, arg := range args {
		for _, mounted := range []string{"/data/", "/etc/nstance/", "/identity/"} {
			arg = strings.Replace(arg, "="+mounted, "="+folder+mounted, 1)
		}
		replaced = append(replaced, arg)
	}
	return replaced
}

// run runs nstance-admin and returns what kubectl logs would print.
func run(t *testing.T, args []string) string {
	t.Helper()
	command := admin.NewCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetErr(&output)
	command.SetArgs(args)
	require.NoError(t, command.ExecuteContext(t.Context()), "nstance-admin %s", strings.Join(args, " "))
	return output.String()
}

// The init containers and the Job create the storage from nothing, in any order and repeatedly. What
// the Job prints are the objects that the operator needs, with the addresses of the Services.
func TestInitContainersAndJob(t *testing.T) {
	d := render(t)
	folder := t.TempDir()
	for _, name := range []string{"data", "etc/nstance", "identity"} {
		require.NoError(t, os.MkdirAll(filepath.Join(folder, name), 0o755))
	}
	for name, text := range d.configMaps["nstance-demo"].Data {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "etc/nstance", name), []byte(text), 0o600))
	}
	job := d.job.Spec.Template.Spec
	start := func(shard string) {
		run(t, inFolder(folder, d.deployments["nstance-server-"+shard].Spec.Template.Spec.InitContainers[0].Args))
	}
	start(shards[1])
	run(t, inFolder(folder, job.InitContainers[0].Args))
	for _, shard := range shards {
		start(shard)
	}
	printed := run(t, inFolder(folder, job.Containers[0].Args))

	for _, shard := range shards {
		stored, err := os.ReadFile(filepath.Join(folder, "data/bucket/config", shard+".jsonc"))
		require.NoError(t, err)
		assert.Equal(t, d.configMaps["nstance-demo"].Data[shard+".jsonc"], string(stored))
	}
	configMaps := map[string]map[string]string{}
	for document := range strings.SplitSeq(printed, "\n---\n") {
		var object struct {
			metav1.PartialObjectMetadata

			Data map[string]string `json:"data"`
		}
		require.NoError(t, yaml.Unmarshal([]byte(document), &object))
		configMaps[object.Kind+"/"+object.Namespace+"/"+object.Name] = object.Data
	}
	authority, err := os.ReadFile(filepath.Join(folder, "data/bucket/ca.crt"))
	require.NoError(t, err)
	assert.Equal(t, string(authority), configMaps["ConfigMap/nstance-system/nstance-cluster-ca"]["ca.crt"])
	assert.NotEmpty(t, configMaps["Secret/nstance-system/nstance-operator-nonce"]["nonce.jwt"])
	want := map[string]string{}
	for _, shard := range shards {
		want[shard] = "nstance-server-" + shard + "." + namespace + ".svc:8993"
	}
	assert.Equal(t, want, configMaps["ConfigMap/nstance-system/nstance-shards"])
}

// The configurations are valid, differ in their zone only, and no Pod that must run is scheduled to a
// Node that does not exist.
func TestConfigurationsAreValid(t *testing.T) {
	d := render(t)
	providers := provider.Registry{kwok.Name: kwok.ReadOptions}
	texts := map[string]string{}
	for _, shard := range shards {
		text := d.configMaps["nstance-demo"].Data[shard+".jsonc"]
		path := filepath.Join(t.TempDir(), shard+".jsonc")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		source, err := config.ReadFile(path)
		require.NoError(t, err)
		parsed, err := source.ParseFor(shard, providers)
		require.NoError(t, err)
		assert.Empty(t, parsed.Warnings())
		taints, err := json.Marshal(parsed.Templates["worker"].Args["taints"])
		require.NoError(t, err)
		assert.JSONEq(t, `{"kwok.x-k8s.io/node": "fake:NoSchedule"}`, string(taints))
		address := parsed.Shard.Advertise.OperatorAddr
		assert.Equal(t, "nstance-server-"+shard+"."+namespace+".svc:8993", address)
		texts[strings.ReplaceAll(strings.ReplaceAll(text, shard, "SHARD"), "subnet-"+shard[len(shard)-1:], "subnet")] = shard
	}
	assert.Len(t, texts, 1, "the configurations differ")
}

// The documented installation has three commands.
func TestDocumentedInstallationHasThreeCommands(t *testing.T) {
	require.NoError(t, inputs.Check(inputs.Docs))
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "install.md"))
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n### On your own cluster\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n### ")
	blocks := strings.Split(section, "```sh\n")
	require.Len(t, blocks, 4, "prerequisites, installation, trial")
	installation, _, _ := strings.Cut(blocks[2], "```")
	commands := strings.Split(strings.TrimSpace(installation), "\n")
	assert.Len(t, commands, 3)
	assert.Equal(t, "kubectl apply -k manifests/demo", commands[0])
	d := render(t)
	assert.Contains(t, commands[1], "-n "+d.job.Namespace+" ")
	assert.True(t, strings.HasSuffix(commands[1], " job/"+d.job.Name))
	assert.Contains(t, commands[2], "logs job/"+d.job.Name+" ")
}
