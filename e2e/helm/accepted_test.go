// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package helm

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"nstance.dev/operator/e2e/controlplane"
)

// warnings records what the API server warns of.
type warnings struct {
	mu   sync.Mutex
	text []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

// The API server accepts the objects of the shard servers, and warns of nothing: their namespace warns
// of Pods that are not restricted.
func TestServersAreAccepted(t *testing.T) {
	const namespace = "nstance-servers"
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	for _, base := range []string{"server", "demo"} {
		t.Run(base, func(t *testing.T) {
			objects, err := controlplane.Render(filepath.Join(root, "manifests", base))
			require.NoError(t, err)
			// The cluster has the objects of the operator.
			objects = slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
				return object.GetNamespace() != namespace && object.GetName() != namespace && !strings.HasPrefix(object.GetName(), "nstance-demo-")
			})
			for _, object := range objects {
				if object.GetKind() == "Deployment" {
					// No kubelet runs a server.
					require.NoError(t, unstructured.SetNestedField(object.Object, int64(0), "spec", "replicas"))
				}
				if object.GetKind() == "Job" {
					require.NoError(t, unstructured.SetNestedField(object.Object, true, "spec", "suspend"))
				}
			}
			t.Cleanup(func() {
				env.Kubectl(t, "delete", "--ignore-not-found", "--wait=false", "clusterrole,clusterrolebinding", "nstance-demo-server")
			})
			seen := &warnings{}
			config := rest.CopyConfig(env.AdminConfig())
			config.WarningHandler = seen
			require.NoError(t, controlplane.Apply(t.Context(), config, "test", objects))
			assert.Empty(t, seen.text)
			for _, object := range objects {
				if object.GetKind() == "Deployment" {
					_, err := env.Kube.AppsV1().Deployments(namespace).Get(t.Context(), object.GetName(), metav1.GetOptions{})
					assert.NoError(t, err)
				}
			}
		})
	}
}
