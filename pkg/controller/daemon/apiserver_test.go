// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package daemon

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const kubeconfigText = `{"kind": "Config", "apiVersion": "v1", "current-context": "a",
"clusters": [{"name": "a", "cluster": {"server": "https://192.0.2.1:6443"}}],
"contexts": [{"name": "a", "context": {"cluster": "a"}}]}`

func TestAPIServerOfAKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	_, err := APIServer(path)
	require.ErrorContains(t, err, "--kubeconfig: ")
	require.NoError(t, os.WriteFile(path, []byte(kubeconfigText), 0o600))
	config, err := APIServer(path)
	require.NoError(t, err)
	assert.Equal(t, "https://192.0.2.1:6443", config.Host)
}

// The account of a Pod is no reason for a warning, and outside of a Pod the error names the flag.
func TestAPIServerOfAPod(t *testing.T) {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(flags)
	require.NoError(t, flags.Set("logtostderr", "false"))
	var logged bytes.Buffer
	klog.SetOutput(&logged)
	t.Cleanup(func() {
		klog.SetOutput(os.Stderr)
		require.NoError(t, flags.Set("logtostderr", "true"))
	})
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err := APIServer("")
	require.ErrorIs(t, err, rest.ErrNotInCluster)
	require.ErrorContains(t, err, "--kubeconfig is not set")
	klog.Flush()
	assert.Empty(t, logged.String())
}
