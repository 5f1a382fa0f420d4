// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package charts tests the Helm charts of manifests/helm.
package charts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
)

const (
	operatorChart = "nstance-operator"
	marekvsChart  = "marekvs-operator"
	serverChart   = "nstance-server"
	namespace     = "nstance-system"
)

func TestMain(m *testing.M) {
	// Helm logs every link of a chart.
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// root returns the folder of the repository.
func root(t *testing.T) string {
	t.Helper()
	require.NoError(t, inputs.Check(inputs.Manifests))
	folder, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	return folder
}

// allCharts are the names of the charts.
var allCharts = []string{operatorChart, marekvsChart, serverChart}

// required returns the values without which a chart cannot be installed.
func required(name string) map[string]any {
	if name != serverChart {
		return nil
	}
	// As in manifests/server.
	return map[string]any{"shard": "us-west-2a", "storage": map[string]any{"bucket": "my-bucket"}}
}

// folder returns the folder of a chart.
func folder(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(root(t), "manifests", "helm", name)
}

func load(t *testing.T, path string) *chart.Chart {
	t.Helper()
	loaded, err := loader.Load(path)
	require.NoError(t, err)
	return loaded
}

// objects are the objects of a rendering by kind, namespace and name.
type objects map[string]*unstructured.Unstructured

func (o objects) add(object *unstructured.Unstructured) error {
	key := path.Join(object.GetKind(), object.GetNamespace(), object.GetName())
	if o[key] != nil {
		return fmt.Errorf("%s is there twice", key)
	}
	o[key] = object
	return nil
}

// render returns the objects of a release of a chart.
func render(t *testing.T, c *chart.Chart, namespace string, values map[string]any) objects {
	t.Helper()
	rendered, err := tryRender(c, namespace, values)
	require.NoError(t, err)
	return rendered
}

func tryRender(c *chart.Chart, namespace string, values map[string]any) (objects, error) {
	release := chartutil.ReleaseOptions{Name: c.Name(), Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, release, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	rendered := objects{}
	for name, text := range files {
		if path.Ext(name) != ".yaml" {
			continue
		}
		if err := rendered.decode(text); err != nil {
			return nil, fmt.Errorf("read the objects of %s: %w", name, err)
		}
	}
	return rendered, nil
}

// decode adds the objects of a file.
func (o objects) decode(text string) error {
	reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := yaml.ToJSON(document)
		if err != nil {
			return err
		}
		if string(data) == "null" {
			continue
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(data); err != nil {
			return err
		}
		if err := o.add(object); err != nil {
			return err
		}
	}
}

// kustomize returns the objects of a kustomization.
func kustomize(t *testing.T, path ...string) objects {
	t.Helper()
	list, err := controlplane.Render(filepath.Join(append([]string{root(t), "manifests"}, path...)...))
	require.NoError(t, err)
	built := objects{}
	for _, object := range list {
		if strings.HasPrefix(object.GetKind(), "Validating") {
			// Kustomize does not know that policies have no namespace, which API servers ignore.
			object.SetNamespace("")
		}
		require.NoError(t, built.add(object))
	}
	return built
}
