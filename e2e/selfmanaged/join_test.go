// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/leaks"
	"nstance.dev/operator/pkg/server/provider/docker"
)

// Users of the API server, with the id of an instance or of a token.
const (
	nodeUser  = "system:node:"
	tokenUser = "system:bootstrap:"
)

// agentFolder is the folder of the agent in a machine.
const agentFolder = "/opt/nstance-agent/"

// machinesByID returns the containers of all machines by the id of their instances.
func (c *Cluster) machinesByID(t *testing.T) map[string]string {
	t.Helper()
	containers, err := c.options.Docker.Nodes(t.Context(), c.options.Shards...)
	require.NoError(t, err)
	machines := map[string]string{}
	for _, machine := range containers {
		machines[machine.Labels[docker.LabelInstanceID]] = machine.ID
	}
	return machines
}

// nodes returns the names of the Nodes of a group, which are the ids of their instances.
func (c *Cluster) nodes(t *testing.T, group string, count int) []string {
	t.Helper()
	list, err := c.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "nstance.dev/group=" + group})
	require.NoError(t, err)
	var names []string
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	require.Len(t, names, count)
	return names
}

// runIn runs a program in a machine and returns its output.
func (c *Cluster) runIn(t *testing.T, machine string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "docker", slices.Concat([]string{"--host", c.options.Docker.Address, "exec", machine}, arguments)...)
	output, err := command.Output()
	require.NoError(t, err, "%s in machine %s", arguments, machine)
	return string(output)
}

// requesters returns who has requested the certificates of kubelets.
func (c *Cluster) requesters(t *testing.T) map[string]bool {
	t.Helper()
	requests, err := c.Kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	users := map[string]bool{}
	for _, request := range requests.Items {
		users[request.Spec.Username] = true
	}
	return users
}

// expectNowhere expects that a secret is in no file of the servers and of the administrator, apart from
// those below the folders skip, and in no object of Kubernetes but known.
func (c *Cluster) expectNowhere(t *testing.T, secret leaks.Texts, known []string, skip ...string) {
	t.Helper()
	files, err := secret.Files(c.options.Dir, skip...)
	require.NoError(t, err)
	assert.Empty(t, files.Found)
	for _, folder := range []string{c.bucket(), filepath.Join(c.options.Dir, "cache"), filepath.Join(c.options.Dir, "logs"), c.volume(auditVolume)} {
		assert.Positive(t, files.Searched(folder), "files of %s that were searched", folder)
	}
	client, err := dynamic.NewForConfig(c.Config)
	require.NoError(t, err)
	objects, err := secret.Objects(t.Context(), c.Kube.Discovery(), client)
	require.NoError(t, err)
	assert.Equal(t, known, objects.Found)
	for _, kind := range []string{"NstanceShardGroup", "NstanceMachinePool", "MachinePool", "Event", "Node", "Secret"} {
		assert.True(t, objects.Kinds[kind], "no object of kind %s was searched", kind)
	}
}

// expectOnlyIn expects that of all machines only one has a secret, and only in a folder of its agent. No
// machine has it with owner "". Userdata, arguments and output of the machines do not have it.
func (c *Cluster) expectOnlyIn(t *testing.T, secret leaks.Texts, owner, folder string) {
	t.Helper()
	for id, machine := range c.machinesByID(t) {
		found, err := secret.Machine(t.Context(), c.options.Docker.Address, machine)
		require.NoError(t, err)
		if id == owner {
			assert.NotEmpty(t, found, "the search finds nothing in machine %s", id)
			found = slices.DeleteFunc(found, func(path string) bool { return strings.HasPrefix(path, folder) })
		}
		assert.Empty(t, found, "files of machine %s", id)
		seen, err := secret.Container(t.Context(), c.options.Docker.Address, machine)
		require.NoError(t, err)
		assert.False(t, seen, "docker inspect, or docker logs, of machine %s", id)
	}
}

// expectOwnCertificates expects that each machine of a group has joined with a certificate of its own, whose
// key is nowhere else, and makes it no other Node. The key of the CA of Kubernetes, which machines of the
// control plane share, is on no other machine.
func (c *Cluster) expectOwnCertificates(t *testing.T, group string, count int) {
	t.Helper()
	names, machines, users := c.nodes(t, group, count), c.machinesByID(t), c.requesters(t)
	for user := range users {
		assert.False(t, strings.HasPrefix(user, tokenUser), "%s has requested a certificate", user)
	}
	for _, name := range names {
		assert.True(t, users[nodeUser+name], "Node %s has not joined as itself", name)
		require.Contains(t, machines, name)
		key, err := leaks.OfPEM(c.runIn(t, machines[name], "cat", agentFolder+"keys/"+bootstrapKey+".key"))
		require.NoError(t, err)
		c.expectNowhere(t, key, nil)
		c.expectOnlyIn(t, key, name, agentFolder+"keys/")
	}
	authorityKey, err := os.ReadFile(c.authority.keyFile())
	require.NoError(t, err)
	shared, err := leaks.OfPEM(string(authorityKey))
	require.NoError(t, err)
	c.expectNowhere(t, shared, nil, filepath.Dir(c.authority.keyFile()), c.volume("pki"))
	for _, name := range names {
		found, err := shared.Machine(t.Context(), c.options.Docker.Address, machines[name])
		require.NoError(t, err)
		assert.Empty(t, found, "machine %s has the key of the CA", name)
	}

	// An attacker with the certificates of a machine.
	as := func(certificate, key string) kubernetes.Interface {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: c.Config.Host, TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.Config.CAData,
			CertData: []byte(c.runIn(t, machines[names[0]], "cat", agentFolder+certificate)), KeyData: []byte(c.runIn(t, machines[names[0]], "cat", agentFolder+key)),
		}})
		require.NoError(t, err)
		return client
	}
	machine := as("recv/bootstrap.crt", "keys/"+bootstrapKey+".key")
	_, err = machine.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "lists Secrets: %v", err)
	// It may renew its own certificate.
	require.NoError(t, request(t, machine, names[0]))
	err = request(t, machine, names[1])
	assert.True(t, apierrors.IsForbidden(err), "requests the certificate of another Node: %v", err)
	// The certificate of the agent is for the servers of the shards.
	agent := as("identity/identity.crt", "identity/identity.key")
	_, err = agent.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	assert.True(t, apierrors.IsForbidden(err), "lists Pods: %v", err)
}

// request requests the certificate of a Node as a client.
func request(t *testing.T, client kubernetes.Interface, node string) error {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: nodeUser + node, Organization: []string{"system:nodes"}},
	}, key)
	require.NoError(t, err)
	_, err = client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "attacker-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	return err
}

// expectJoinWithAToken expects that a machine joins with a token of kubeadm, which it gets in a file after it
// has registered, as the guides have it, and that the token is nowhere else: not in the bucket, not in
// userdata, not in a log, and in no object of Kubernetes but its own.
func (c *Cluster) expectJoinWithAToken(t *testing.T) {
	t.Helper()
	const pool = "token-workers"
	id, secret := c.storeJoinSecret(t)
	c.scaleTemplate(t, pool, tokenTemplate, 1)
	until(t, stepTimeout, "a worker joined with a token", c.ready(pool, 1))
	assert.True(t, c.requesters(t)[tokenUser+id], "no kubelet has joined with token %s", id)
	texts := leaks.Of(secret)
	// etcd has the Secret of the token.
	name := bootstrapTokenSecret(id)
	c.expectNowhere(t, texts, []string{"secrets " + metav1.NamespaceSystem + "/" + name}, c.volume("etcd"))
	c.expectOnlyIn(t, texts, c.nodes(t, pool, 1)[0], agentFolder+"recv/")
	// Cluster API deletes the Nodes that it has recorded. The operator deletes other Nodes after minutes.
	until(t, stepTimeout, "Cluster API has the Node of the worker", c.pool(pool, 1))
	c.scaleTemplate(t, pool, tokenTemplate, 0)
	until(t, stepTimeout, "the worker left", c.ready(pool, 0))
	require.NoError(t, c.Kube.CoreV1().Secrets(metav1.NamespaceSystem).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func bootstrapTokenSecret(id string) string { return "bootstrap-token-" + id }

// storeJoinSecret runs the script of the guides, with kubeadm of the control plane, and returns the two
// halves of the token that it has created. The first one is public.
func (c *Cluster) storeJoinSecret(t *testing.T) (id, secret string) {
	t.Helper()
	controlPlane, err := c.options.Docker.Nodes(t.Context(), c.options.Shards[0])
	require.NoError(t, err)
	require.Len(t, controlPlane, 1)
	script, err := os.ReadFile(filepath.Join(c.options.Root, "manifests", "agent", "join-secret.sh"))
	require.NoError(t, err)
	folder := t.TempDir()
	kubeadm := fmt.Sprintf("#!/bin/sh\nset -eu\ndocker --host %s exec %s kubeadm \"$@\" >%s/token\ncat %s/token\n", c.options.Docker.Address, controlPlane[0].ID, folder, folder)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "kubeadm"), []byte(kubeadm), 0o700))
	require.NoError(t, os.Symlink(c.options.Admin, filepath.Join(folder, "nstance-admin")))
	arguments := slices.Concat([]string{
		"-c", strings.ReplaceAll(string(script), "/etc/kubernetes/pki/ca.crt", c.authority.certificateFile()), "join-secret.sh", c.balancer.address(),
	}, c.storage())
	command := exec.CommandContext(t.Context(), "sh", arguments...)
	command.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	require.NoError(t, err, string(output))
	token, err := os.ReadFile(filepath.Join(folder, "token"))
	require.NoError(t, err)
	id, secret, found := strings.Cut(strings.TrimSpace(string(token)), ".")
	require.True(t, found, "kubeadm printed no token")
	_, err = c.Kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), bootstrapTokenSecret(id), metav1.GetOptions{})
	require.NoError(t, err)
	return id, secret
}
