// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"nstance.dev/operator/pkg/server/servertest"
)

// printedObjects are the objects that operator install prints, by kind and name.
type printedObjects struct {
	namespaces map[string]corev1.Namespace
	configMaps map[string]corev1.ConfigMap
	secrets    map[string]corev1.Secret
}

func parseObjects(t *testing.T, text string) printedObjects {
	t.Helper()
	p := printedObjects{map[string]corev1.Namespace{}, map[string]corev1.ConfigMap{}, map[string]corev1.Secret{}}
	for document := range bytes.SplitSeq([]byte(text), []byte("\n---\n")) {
		var meta metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal(document, &meta))
		require.Equal(t, "v1", meta.APIVersion)
		switch meta.Kind {
		case "Namespace":
			var object corev1.Namespace
			require.NoError(t, yaml.UnmarshalStrict(document, &object))
			p.namespaces[object.Name] = object
		case "ConfigMap":
			var object corev1.ConfigMap
			require.NoError(t, yaml.UnmarshalStrict(document, &object))
			p.configMaps[object.Namespace+"/"+object.Name] = object
		case "Secret":
			var object corev1.Secret
			require.NoError(t, yaml.UnmarshalStrict(document, &object))
			p.secrets[object.Namespace+"/"+object.Name] = object
		default:
			t.Errorf("unexpected kind %q", meta.Kind)
		}
	}
	return p
}

func TestOperatorInstallWithANonce(t *testing.T) {
	folder := t.TempDir()
	identity := filepath.Join(folder, "identity")
	mustRun(t, "cluster", "init", "--storage", "file", "--storage-bucket", filepath.Join(folder, "bucket"), "--cluster-id", "prod",
		"--key-provider", "file", "--key", filepath.Join(folder, "key"), "--identity-dir", identity)
	p := parseObjects(t, mustRun(t, "operator", "install", "--identity-dir", identity, "--servers", "zone-a=10.0.0.2:8993,zone-b=[2001:db8::a]:8993"))

	// The namespace is as manifests/operator has it.
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", "operator", "namespace.yaml"))
	require.NoError(t, err)
	var namespace corev1.Namespace
	require.NoError(t, yaml.UnmarshalStrict(text, &namespace))
	assert.Equal(t, map[string]corev1.Namespace{"nstance-system": namespace}, p.namespaces)
	require.Len(t, p.configMaps, 2)
	assert.Equal(t, map[string]string{"zone-a": "10.0.0.2:8993", "zone-b": "[2001:db8::a]:8993"}, p.configMaps["nstance-system/nstance-shards"].Data)
	authority, err := os.ReadFile(filepath.Join(identity, "ca.crt"))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"ca.crt": string(authority)}, p.configMaps["nstance-system/nstance-cluster-ca"].Data)
	require.Len(t, p.secrets, 1)
	nonce, err := os.ReadFile(filepath.Join(identity, "nonce.jwt"))
	require.NoError(t, err)
	assert.Equal(t, map[string][]byte{"nonce.jwt": nonce}, p.secrets["nstance-system/nstance-operator-nonce"].Data)
}

// TestOperatorInstallWithACertificate: the operator takes the certificate for its own, and renews it.
func TestOperatorInstallWithACertificate(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	identity := register(t, s)
	p := parseObjects(t, mustRun(t, "operator", "install", "--identity-dir", identity, "--servers", "zone-a=10.0.0.2:8993", "--namespace", "other"))
	assert.Contains(t, p.namespaces, "other")
	require.Len(t, p.secrets, 2)
	key, certificate := p.secrets["other/nstance-operator-key"], p.secrets["other/nstance-operator-cert"]
	require.NotNil(t, key.Immutable)
	assert.True(t, *key.Immutable)
	assert.Equal(t, corev1.SecretTypeTLS, certificate.Type)
	assert.Contains(t, certificate.Annotations, "nstance.dev/certificate-issued")
	assert.Equal(t, key.Data["private.key"], certificate.Data["tls.key"])
	assert.Contains(t, string(key.Data["public.key"]), "PUBLIC KEY")
	read, err := os.ReadFile(filepath.Join(identity, "identity.crt"))
	require.NoError(t, err)
	assert.Equal(t, read, certificate.Data["tls.crt"])

	administrator := filepath.Join(t.TempDir(), "administrator")
	mustRun(t, append([]string{"operator", "issue", "--identity-dir", administrator}, clusterFlags(s)...)...)
	_, err = run(t, "operator", "install", "--identity-dir", administrator, "--servers", "zone-a=10.0.0.2:8993")
	wantError(t, err, "identity.crt: it is of client", `an operator of the cluster is client "test"`)
}

func TestOperatorInstallRefuses(t *testing.T) {
	folder := t.TempDir()
	identity := filepath.Join(folder, "identity")
	mustRun(t, "cluster", "init", "--storage", "file", "--storage-bucket", filepath.Join(folder, "bucket"), "--cluster-id", "prod",
		"--key-provider", "file", "--key", filepath.Join(folder, "key"), "--identity-dir", identity, "--nonce-expiry", "1ns")
	empty := t.TempDir()
	authority, err := os.ReadFile(filepath.Join(identity, "ca.crt"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(empty, "ca.crt"), authority, 0o600))
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "ca.crt"), authority, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(broken, "nonce.jwt"), []byte("hunter2"), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"nothing", nil, []string{"--identity-dir", "--servers: must be shard=host:port"}},
		{"an expired nonce", []string{"--identity-dir", identity, "--servers", "a=b:1"}, []string{"nonce.jwt: the nonce expired at", "cluster nonce"}},
		{"neither nonce nor key", []string{"--identity-dir", empty, "--servers", "a=b:1"}, []string{"neither nonce.jwt", "identity.key"}},
		{"a nonce that is none", []string{"--identity-dir", broken, "--servers", "a=b:1"}, []string{"nonce.jwt: must be the output"}},
		{"no folder", []string{"--identity-dir", "/nothing", "--servers", "a=b:1"}, []string{"--identity-dir", "/nothing/ca.crt"}},
		{"a wrong address and namespace", []string{"--identity-dir", broken, "--servers", "a=b", "--namespace", "A_B"}, []string{`--servers: "a=b"`, `--namespace: "A_B"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			printed, err := run(t, append([]string{"operator", "install"}, tc.args...)...)
			wantError(t, err, tc.want...)
			assert.Empty(t, printed)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}
