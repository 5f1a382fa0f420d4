// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteCoreProvider makes the folder of a release a repository for clusterctl, of which it returns the
// configuration: it adds a core provider without components, because Cluster API, whose source is in the
// folder module, runs already.
func WriteCoreProvider(release, module string) (configuration string, err error) {
	_, version, _ := strings.Cut(filepath.Base(module), "@")
	core := filepath.Join(release, "cluster-api", version)
	metadata, err := os.ReadFile(filepath.Join(module, "metadata.yaml"))
	if err != nil {
		return "", fmt.Errorf("read the metadata of Cluster API: %w", err)
	}
	configuration = filepath.Join(release, "clusterctl.yaml")
	for path, data := range map[string][]byte{
		filepath.Join(core, "metadata.yaml"):        metadata,
		filepath.Join(core, "core-components.yaml"): []byte("{apiVersion: v1, kind: Namespace, metadata: {name: capi-system}}"),
		configuration: fmt.Appendf(nil, `
overridesFolder: %[1]s/overrides
providers:
  - name: nstance
    type: InfrastructureProvider
    url: %[1]s/infrastructure-nstance/latest/infrastructure-components.yaml
  - name: cluster-api
    type: CoreProvider
    url: %[1]s/cluster-api/latest/core-components.yaml
`, release),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", fmt.Errorf("write a repository of clusterctl: %w", err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return "", fmt.Errorf("write a repository of clusterctl: %w", err)
		}
	}
	return configuration, nil
}
