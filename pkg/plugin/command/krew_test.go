// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// krewPlugin are the fields that the manifest has, of those that krew knows.
type krewPlugin struct {
	APIVersion string                `json:"apiVersion"`
	Kind       string                `json:"kind"`
	Metadata   struct{ Name string } `json:"metadata"`
	Spec       struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Bin    string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

// The manifest for krew can be read, and has the placeholders that make krew replaces.
func TestKrewManifest(t *testing.T) {
	data, err := os.ReadFile("../../../manifests/krew/nstance.yaml")
	require.NoError(t, err)
	var plugin krewPlugin
	require.NoError(t, yaml.UnmarshalStrict(data, &plugin))
	if plugin.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || plugin.Kind != "Plugin" || plugin.Metadata.Name != "nstance" {
		t.Errorf("%s %s %s", plugin.APIVersion, plugin.Kind, plugin.Metadata.Name)
	}
	if plugin.Spec.Version != "VERSION" || plugin.Spec.ShortDescription == "" || len(plugin.Spec.ShortDescription) > 50 {
		t.Errorf("version %q, short description %q", plugin.Spec.Version, plugin.Spec.ShortDescription)
	}
	var platforms []string
	for _, platform := range plugin.Spec.Platforms {
		labels := platform.Selector.MatchLabels
		name := labels["os"] + "_" + labels["arch"]
		platforms = append(platforms, name)
		if want := "URL/kubectl-nstance_" + name + ".tar.gz"; platform.URI != want {
			t.Errorf("platform %s: uri %s, want %s", name, platform.URI, want)
		}
		if want := "SHA256_" + strings.ToUpper(name); platform.SHA256 != want {
			t.Errorf("platform %s: sha256 %s, want %s", name, platform.SHA256, want)
		}
		if platform.Bin != "kubectl-nstance" {
			t.Errorf("platform %s: bin %s", name, platform.Bin)
		}
	}
	// hack/release.sh builds these, and refuses a manifest with another one.
	require.Equal(t, []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"}, platforms)
}
