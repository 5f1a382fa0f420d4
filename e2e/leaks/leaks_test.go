// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leaks

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	discoveryfake "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clientgotesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/base/keys"
)

const secret = "0123456789abcdef"

// A secret is found as it is, and in base64 wherever it begins, also of a part of a file.
func TestASecretIsFoundInEachForm(t *testing.T) {
	texts := Of(secret)
	for _, before := range []string{"", "a", "ab", "abc", "token: "} {
		for _, after := range []string{"", "\n", "yz"} {
			text := before + secret + after
			assert.True(t, texts.In([]byte(text)), text)
			encoded := base64.StdEncoding.EncodeToString([]byte(text))
			assert.True(t, texts.In([]byte(encoded)), encoded)
		}
	}
	for _, other := range []string{"", secret[1:], "0123456789abcdee", base64.StdEncoding.EncodeToString([]byte("fedcba9876543210"))} {
		assert.False(t, texts.In([]byte(other)), other)
	}
}

// The key of an agent is found in PEM, and in the base64 of its PEM, as kubeadm writes it into a kubeconfig.
func TestAKeyIsFound(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	_, other, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	encoded, err := keys.EncodePrivate(key)
	require.NoError(t, err)
	otherPEM, err := keys.EncodePrivate(other)
	require.NoError(t, err)
	texts, err := OfPEM(string(encoded))
	require.NoError(t, err)
	assert.True(t, texts.In(encoded))
	assert.True(t, texts.In([]byte("client-key-data: "+base64.StdEncoding.EncodeToString(encoded))))
	assert.False(t, texts.In(otherPEM), "another key has the same beginning")
	assert.False(t, texts.In([]byte("client-key-data: "+base64.StdEncoding.EncodeToString(otherPEM))))
	_, err = OfPEM("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n")
	assert.Error(t, err)
}

func TestFiles(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	leak := write("bucket/a/object", "x"+secret+"\x00")
	write("bucket/clean", "nothing")
	write("bucketful/clean", "nothing")
	write("etcd/db", secret)
	require.NoError(t, os.Symlink(leak, filepath.Join(root, "link")))
	files, err := Of(secret).Files(root, filepath.Join(root, "etcd"))
	require.NoError(t, err)
	assert.Equal(t, []string{leak}, files.Found)
	assert.Equal(t, 2, files.Searched(filepath.Join(root, "bucket")))
	assert.Zero(t, files.Searched(filepath.Join(root, "etcd")))
	none, err := Of(secret).Files(filepath.Join(root, "missing"))
	require.NoError(t, err)
	assert.Empty(t, none.Found)
}

func TestObjects(t *testing.T) {
	objects := []runtime.Object{
		&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "token"}, Data: map[string][]byte{"a": []byte(secret)}},
		&corev1.Event{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "talks"}, Message: "the token " + secret + " was refused"},
		&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "clean"}},
	}
	kinds := &discoveryfake.FakeDiscovery{Fake: &clientgotesting.Fake{Resources: []*metav1.APIResourceList{{
		GroupVersion: "v1",
		APIResources: []metav1.APIResource{
			{Name: "secrets", Kind: "Secret", Verbs: metav1.Verbs{"list"}}, {Name: "events", Kind: "Event", Verbs: metav1.Verbs{"list"}},
			{Name: "configmaps", Kind: "ConfigMap", Verbs: metav1.Verbs{"list"}}, {Name: "bindings", Kind: "Binding", Verbs: metav1.Verbs{"create"}},
		},
	}}}}
	found, err := Of(secret).Objects(t.Context(), preferred{kinds}, dynamicfake.NewSimpleDynamicClient(scheme.Scheme, objects...))
	require.NoError(t, err)
	assert.Equal(t, []string{"secrets kube-system/token", "events default/talks"}, found.Found)
	assert.Equal(t, map[string]bool{"Secret": true, "Event": true, "ConfigMap": true}, found.Kinds)
}

// preferred prefers all versions, which the fake does not.
type preferred struct{ *discoveryfake.FakeDiscovery }

func (p preferred) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return p.Resources, nil
}
