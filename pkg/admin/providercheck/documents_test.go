// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/aws"
	"nstance.dev/operator/pkg/server/provider/google"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/proxmox"
	"nstance.dev/operator/pkg/server/provider/proxmox/pvetest"
	"nstance.dev/operator/pkg/server/provider/registry"
	"nstance.dev/operator/pkg/server/storage/backend"
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

// TestDocumentedAssumptions: the document has all subjects with their numbers.
func TestDocumentedAssumptions(t *testing.T) {
	document, err := os.ReadFile("../../../docs/providers.md")
	require.NoError(t, err)
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (\\d+) \\| `?([a-z0-9- ]+?)`? \\| ([^|]+) \\|").FindAllStringSubmatch(string(document), -1) {
		documented = append(documented, strings.Join(row[1:], " "))
	}
	var want []string
	for n, subject := range subjects {
		want = append(want, fmt.Sprint(n+1, " ", cmp.Or(subject.of, "every cloud"), " ", subject.name))
	}
	assert.Equal(t, want, documented)
}

// TestEverySubjectIsAskedAbout: each subject has a question, and each question has a subject.
func TestEverySubjectIsAskedAbout(t *testing.T) {
	known := map[string]bool{}
	for _, subject := range subjects {
		known[subject.name] = false
	}
	examine := func(e provider.Examination) {
		for _, assumption := range e.Assumptions {
			_, exists := known[assumption.Subject]
			assert.True(t, exists, "subject %q of a question", assumption.Subject)
			known[assumption.Subject] = true
			assert.NotEmpty(t, assumption.Expected, titleOf(assumption))
		}
	}
	examine(newStorageExamination(backend.GCS, nil, ""))
	examine(newStorageExamination(backend.S3, nil, ""))
	examine(newSecretExamination(nil))
	t.Setenv("NSTANCE_TEST_PROXMOX_TOKEN", pvetest.Token)
	shard := provider.Shard{ClusterID: "check--prod", ID: "a", Region: "us-west-2", Zone: "us-west-2a"}
	for _, options := range []provider.Examiner{
		&aws.Options{}, &google.Options{Project: "project"}, &proxmox.Options{Connection: proxmox.Connection{
			Endpoints: []string{"https://pve1:8006"}, TokenEnv: "NSTANCE_TEST_PROXMOX_TOKEN", Fingerprints: []string{strings.Repeat("00", 32)},
		}},
	} {
		examination, err := options.Examine(shard)
		require.NoError(t, err)
		examine(examination)
	}
	for name, asked := range known {
		assert.True(t, asked, "a question about %s", name)
	}
}
