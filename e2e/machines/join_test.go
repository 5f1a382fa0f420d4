// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/leaks"
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

	texts := leaks.Of(secret)
	// The kubelet reads it where the agent has written it.
	found, err := texts.Machine(t.Context(), docker.Address, node)
	require.NoError(t, err)
	assert.NotEmpty(t, found, "the search finds nothing in the node")
	for _, path := range found {
		assert.Regexp(t, `^/opt/nstance-agent/recv/`, path)
	}
	seen, err := texts.Container(t.Context(), docker.Address, node)
	require.NoError(t, err)
	assert.False(t, seen, "docker inspect, or docker logs")
	// The data of etcd has the Secret of the token.
	files, err := texts.Files(env.Dir(), filepath.Join(env.Dir(), "etcd"))
	require.NoError(t, err)
	assert.Empty(t, files.Found)
	assert.Positive(t, files.Searched(env.Installation.Bucket()), "objects of the bucket that were searched")
	assert.Positive(t, files.Searched(filepath.Join(env.Dir(), "logs")), "logs that were searched")
	objects, err := texts.Objects(t.Context(), env.Kube.Discovery(), env.Dynamic)
	require.NoError(t, err)
	assert.Equal(t, []string{"secrets kube-system/" + tokenName(id)}, objects.Found)
	for _, kind := range []string{"NstanceShardGroup", "NstanceMachinePool", "MachinePool", "Event", "Node", "Secret"} {
		assert.True(t, objects.Kinds[kind], "no object of kind %s was searched", kind)
	}
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
