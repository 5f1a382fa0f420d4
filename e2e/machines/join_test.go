// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// A machine joins with a token of ten minutes, which it gets in a file after it has registered.
// The token is nowhere else: not in the bucket, not in a log, not in an object of Kubernetes, and
// not in the userdata. Other tests do not run at the same time, because their machines would join
// with the token too.
func TestMachineJoinsWithASecret(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const name = "joins"
	id, secret := createToken(t)
	defer storeJoinSecret(t, id+"."+secret)()
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, 1)
	env.UntilRunning(t, name, 1)

	requests, err := env.Kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	joined := 0
	for _, request := range requests.Items {
		if request.Spec.Username == "system:bootstrap:"+id {
			joined++
		}
	}
	assert.Positive(t, joined, "requests of kubelets that have joined with the token")
	started := containers.started(t, name)
	node := started[len(started)-1]

	encodings := encodings(secret)
	// The kubelet reads it where the agent has written it.
	found := filesInContainer(t, node, encodings)
	assert.NotEmpty(t, found, "the search finds nothing in the node")
	for _, path := range found {
		assert.Regexp(t, `^/opt/nstance-agent/recv/`, path)
	}
	for _, arguments := range [][]string{{"inspect", node}, {"logs", node}} {
		assert.False(t, contains([]byte(runDocker(t, arguments...)), encodings), "docker %s", arguments)
	}
	assert.Empty(t, filesOfCluster(t, encodings))
	assert.Equal(t, []string{"secrets kube-system/" + tokenName(id)}, objectsWith(t, encodings))
}

func tokenName(id string) string { return "bootstrap-token-" + id }

// createToken creates a bootstrap token like kubeadm token create --ttl 10m, and returns its two
// halves. The first one is public.
func createToken(t *testing.T) (id, secret string) {
	t.Helper()
	random := make([]byte, 11)
	_, err := rand.Read(random)
	require.NoError(t, err)
	token := hex.EncodeToString(random)
	id, secret = token[:6], token[6:]
	_, err = env.Kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: tokenName(id)},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "expiration": time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:nodes",
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return id, secret
}

// storeJoinSecret stores what the script of the guides stores for a token, and returns a function
// that stores again what was there. The token stays valid for machines that have received it.
func storeJoinSecret(t *testing.T, token string) (restore func()) {
	t.Helper()
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	script, err := os.ReadFile(filepath.Join(root, "manifests", "agent", "join-secret.sh"))
	require.NoError(t, err)
	bootstrap, err := env.BootstrapKubeconfig()
	require.NoError(t, err)
	server, err := clientcmd.RESTConfigFromKubeConfig(bootstrap)
	require.NoError(t, err)

	folder := t.TempDir()
	write := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, content, 0o700))
		return path
	}
	write("kubeadm", []byte("#!/bin/sh\necho "+token+"\n"))
	write("nstance-admin", []byte("#!/bin/sh\nexec cat >stored\n"))
	ca := write("ca.crt", server.CAData)
	command := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(string(script), "/etc/kubernetes/pki/ca.crt", ca),
		"join-secret.sh", strings.TrimPrefix(server.Host, "https://"))
	command.Dir = folder
	command.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))

	set := func(path string) {
		env.Admin(t, "secret", "set", installation.JoinSecret, "--from-file", path,
			"--key-provider", "file", "--key", env.Installation.EncryptionKeyFile())
	}
	set(filepath.Join(folder, "stored"))
	before := write("before", bootstrap)
	return func() { set(before) }
}

// encodings returns a text as it is, and the parts of its base64 that do not depend on what is
// before and after it.
func encodings(text string) [][]byte {
	found := [][]byte{[]byte(text)}
	for offset := range 3 {
		encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", offset) + text))
		found = append(found, []byte(encoded[4:len(encoded)-4]))
	}
	return found
}

func contains(data []byte, texts [][]byte) bool {
	for _, text := range texts {
		if bytes.Contains(data, text) {
			return true
		}
	}
	return false
}

// filesInContainer returns the files with one of the texts below the folders of a node that
// the userdata, the agent and the kubelet write.
func filesInContainer(t *testing.T, node string, texts [][]byte) []string {
	t.Helper()
	// /var/lib/nstance has the userdata until it has run.
	arguments := []string{"exec", node, "grep", "--recursive", "--no-messages", "--files-with-matches", "--fixed-strings"}
	for _, text := range texts {
		arguments = append(arguments, "--regexp="+string(text))
	}
	output, _ := exec.CommandContext(t.Context(), "docker", append(append([]string{"--host", docker.Address}, arguments...),
		"/etc", "/opt", "/root", "/tmp", "/var/lib/kubelet", "/var/lib/nstance", "/var/log")...).Output()
	return strings.Fields(string(output))
}

// filesOfCluster returns the files with one of the texts that the servers, the operator and the
// control plane have written: the bucket, caches, logs and the audit log, but not the data of etcd,
// which has the token's Secret.
func filesOfCluster(t *testing.T, texts [][]byte) []string {
	t.Helper()
	var found []string
	bucket, logs := 0, 0
	err := filepath.WalkDir(env.Dir(), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil // a server has replaced it
		case err != nil:
			return err
		case path == filepath.Join(env.Dir(), "etcd"):
			return filepath.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		if strings.HasPrefix(path, env.Installation.Bucket()) {
			bucket++
		}
		if strings.HasPrefix(path, filepath.Join(env.Dir(), "logs")) {
			logs++
		}
		if contains(data, texts) {
			found = append(found, path)
		}
		return err
	})
	require.NoError(t, err)
	assert.Positive(t, bucket, "objects of the bucket that were searched")
	assert.Positive(t, logs, "logs that were searched")
	return found
}

// objectsWith returns the objects of all kinds with one of the texts: groups, pools, machines and
// events too.
func objectsWith(t *testing.T, texts [][]byte) []string {
	t.Helper()
	lists, err := env.Kube.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	var found []string
	kinds := map[string]bool{}
	for _, list := range lists {
		for _, resource := range list.APIResources {
			if slices.Contains(resource.Verbs, "list") {
				found = append(found, objectsOf(t, list.GroupVersion, resource.Name, texts, kinds)...)
			}
		}
	}
	for _, kind := range []string{"NstanceShardGroup", "NstanceMachinePool", "MachinePool", "Event", "Node", "Secret"} {
		assert.True(t, kinds[kind], "no object of kind %s was searched", kind)
	}
	return found
}

// objectsOf returns the objects of a resource with one of the texts, and adds the kinds of all of
// its objects to kinds.
func objectsOf(t *testing.T, groupVersion, resource string, texts [][]byte, kinds map[string]bool) []string {
	t.Helper()
	version, err := schema.ParseGroupVersion(groupVersion)
	require.NoError(t, err)
	objects, err := env.Dynamic.Resource(version.WithResource(resource)).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "%s %s", groupVersion, resource)
	var found []string
	for _, object := range objects.Items {
		kinds[object.GetKind()] = true
		data, err := object.MarshalJSON()
		require.NoError(t, err)
		if contains(data, texts) {
			found = append(found, resource+" "+object.GetNamespace()+"/"+object.GetName())
		}
	}
	return found
}
