// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/terminal"
)

// Messages and names of servers do not control the terminal.
func TestOutputDoesNotControlTheTerminal(t *testing.T) {
	root := NewCommand()
	for _, command := range append(root.Commands(), root) {
		assert.IsType(t, &terminal.Writer{}, command.OutOrStdout(), command.Name())
		assert.IsType(t, &terminal.Writer{}, command.ErrOrStderr(), command.Name())
	}
	rows := newTable("SHARD", "ERROR")
	rows.add("a", "\x1b[2Jgone\nb\tnone \u009b1A")
	var out strings.Builder
	require.NoError(t, rows.print(&out))
	assert.Equal(t, "SHARD   ERROR\na       \\u001b[2Jgone b none \\u009b1A\n", out.String())
}
