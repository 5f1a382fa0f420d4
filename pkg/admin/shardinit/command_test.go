// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNoFileIsReplaced unless the user demands it.
func TestNoFileIsReplaced(t *testing.T) {
	args, folder := arguments(t, "kwok", "none")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	path := filepath.Join(folder, "install.sh")
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	_, err := run(t, args...)
	require.ErrorContains(t, err, "--force to replace them: "+path)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Len(t, entries, 1, "it has written a part")
	assert.Equal(t, "mine", read(t, folder, "install.sh"))

	printed, err := run(t, append(args, "--force")...)
	require.NoError(t, err)
	assert.NotEqual(t, "mine", read(t, folder, "install.sh"))
	entries, err = os.ReadDir(folder)
	require.NoError(t, err)
	for _, entry := range entries {
		assert.Contains(t, printed, filepath.Join(folder, entry.Name())+"  ")
	}
	assert.Contains(t, printed, "nstance-admin cluster init --cluster-id prod --storage file --storage-bucket /var/lib/nstance/bucket")
	_, err = run(t, args...)
	require.Error(t, err, "again without --force")
}

// TestOwnUserdata is written and embedded in place of the userdata of the command.
func TestOwnUserdata(t *testing.T) {
	args, folder := arguments(t, "qemu", "kubeadm")
	_, err := run(t, args...)
	require.NoError(t, err)
	own := filepath.Join(folder, "userdata.sh")
	text := read(t, folder, "userdata.sh") + "echo 'done'\n"
	require.NoError(t, os.WriteFile(own, []byte(text), 0o600))
	_, c := written(t, "qemu", "kubeadm", "--userdata", own)
	assert.Equal(t, text, c.Templates["worker"].Userdata.Inline)
}

// without returns the arguments without a flag and its value.
func without(args []string, flag string) []string {
	at := slices.Index(args, flag)
	return slices.Delete(slices.Clone(args), at, at+2)
}

func TestMistakesInSettings(t *testing.T) {
	for _, tc := range []struct {
		name, provider, join string
		change               func([]string) []string
		want                 []string
	}{
		{"nothing", "aws", "none", func([]string) []string { return nil }, []string{"--provider: must be set", "--join: must be set"}},
		{"an unknown provider", "azure", "none", nil, []string{`--provider: "azure" is unknown, must be one of aws, google`}},
		{"an unknown way to join", "aws", "kops", nil, []string{`--join: "kops" is unknown`}},
		{"all that is missing", "aws", "none", func(args []string) []string {
			return without(without(without(args, "--subnet"), "--security-group"), "--address")
		}, []string{"--subnet: must be set", "--security-group: must be set", "--address: must be set"}},
		{"a flag of another provider", "aws", "none", func(args []string) []string { return append(args, "--project", "p") },
			[]string{"--project: is for --provider google only"}},
		{"a flag of another way to join", "aws", "kubeadm", func(args []string) []string { return append(args, "--eks-cluster", "p") },
			[]string{"--eks-cluster: is for --join eks only"}},
		{"an address with a port", "kwok", "none", func(args []string) []string { return append(args, "--address", "10.0.0.1:80") },
			[]string{`--address: "10.0.0.1:80" must be a host name or an IP address without a port`}},
		{"a program without a hash", "aws", "none", func(args []string) []string { return append(args, "--agent-url", agentAt) },
			[]string{"--agent-sha256: must be set with --agent-url"}},
		{"a wrong hash", "aws", "none", func(args []string) []string { return append(args, "--agent-url", agentAt, "--agent-sha256", "x") },
			[]string{`--agent-sha256: "x" must be the output of sha256sum`}},
		{"a type of unknown size", "google", "none", func(args []string) []string { return append(args, "--instance-type", "e2-standard-8") },
			[]string{`--cpu: must be set, because the provider does not know the type "e2-standard-8"`, "--memory: must be set"}},
		{"a type that AWS does not have", "aws", "none", func(args []string) []string { return append(args, "--instance-type", "m9.large") },
			[]string{"no valid configuration", "m9.large"}},
		{"EKS without a version", "aws", "eks", func(args []string) []string { return without(args, "--image") },
			[]string{"--image: must name the images of the version"}},
		{"a wrong id", "kwok", "none", func(args []string) []string { return append(args, "--cluster-id", "A_B") }, []string{`--cluster-id: "A_B"`}},
		{"no file", "kwok", "none", func(args []string) []string { return append(args, "--userdata", "/nothing") }, []string{"--userdata: open /nothing"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args, folder := arguments(t, tc.provider, tc.join)
			if tc.change != nil {
				args = tc.change(args)
			}
			_, err := run(t, args...)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
			assert.Len(t, strings.Split(err.Error(), "\n"), len(tc.want), err)
			assert.NoDirExists(t, folder)
		})
	}
}
