// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
	"nstance.dev/operator/pkg/server/provider/registry"
)

var configurations = regexp.MustCompile("(?s)```jsonc\n( *{\n.*?)```")

// TestDocumentedConfigurations: the provider of each document accepts what a check of its
// configuration creates.
func TestDocumentedConfigurations(t *testing.T) {
	t.Setenv("NSTANCE_TEST_PROXMOX_TOKEN", pvetest.Token)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", gcetest.New().Credentials(t))
	for _, name := range []string{"aws", "google", "proxmox"} {
		t.Run(name, func(t *testing.T) {
			document, err := os.ReadFile("../../../docs/" + name + ".md")
			require.NoError(t, err)
			match := configurations.FindSubmatch(document)
			require.NotNil(t, match)
			// Files of a host of Proxmox VE.
			text := strings.NewReplacer(`{"file": "/etc/nstance/proxmox-token"}`, `{"env": "NSTANCE_TEST_PROXMOX_TOKEN"}`,
				`"ca_file": "/etc/nstance/pve-root-ca.pem",`, "").Replace(string(match[1]))
			path := filepath.Join(t.TempDir(), "shard.jsonc")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

			o := options{config: path, template: "worker", stepTimeout: defaultStepTimeout, cleanupTimeout: defaultCleanupTimeout}
			c, err := o.check(registry.Providers)
			require.NoError(t, err)
			assert.Equal(t, "check--prod", c.shard.ClusterID)
			_, err = c.spec(t.Context())
			require.NoError(t, err)
			p, err := c.config.Shard.Infra.Options.NewProvider(c.shard, nil)
			require.NoError(t, err)
			assert.Implements(t, (*provider.Provider)(nil), p)
		})
	}
}
