// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package runbook

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tick is a fence of a block.
const tick = "```"

// document has a procedure and another section.
const document = `# Operations

## Stop a thing

Text.

*Not touched:* others.

` + tick + `sh
NAME=thing  # which one
export KEY=secret
` + tick + `

1. Show it. This
   takes two lines:

   ` + tick + `sh
   # no heading
   seen=$(cat <<END
   $NAME
   END
   )
   ` + tick + `

   More text.

2. Pull the plug.
3. Look twice:

   ` + tick + `sh
   true
   ` + tick + `

   or

   ` + tick + `sh
   false
   ` + tick + `

Text that is no step.

### Other

` + tick + `sh
exit 1
` + tick + `
`

func TestParse(t *testing.T) {
	sections := splitSections(document)
	require.Len(t, sections, 3)
	found, err := find(sections, "Stop a thing")
	require.NoError(t, err)
	parsed, err := found.parse()
	require.NoError(t, err)
	assert.Equal(t, steps{
		variables: []variable{{name: "NAME"}, {name: "KEY", exported: true}},
		steps: []step{
			{"Show it. This takes two lines:", []string{"# no heading\nseen=$(cat <<END\n$NAME\nEND\n)\n"}},
			{"Pull the plug.", nil},
			{"Look twice:", []string{"true\n", "false\n"}},
		},
	}, parsed)
	assert.False(t, sections[2].isProcedure())
}

func TestInvalidProcedures(t *testing.T) {
	for name, test := range map[string]struct{ old, replacement, want string }{
		"without the paragraph":  {untouchedMark, "Untouched:", "no paragraph begins with"},
		"without variables":      {"NAME=thing  # which one\nexport KEY=secret\n", "", "no block sets variables"},
		"a command among them":   {"export KEY=secret", "kubectl get nodes", `has the line "kubectl get nodes\n"`},
		"a step is missing":      {"2. Pull the plug.\n", "", "step 3 follows step 1"},
		"a block after the list": {"Text that is no step.", tick + "sh\ntrue\n" + tick, "is no part of a step"},
		"without a block":        {"   " + tick + "sh", "   " + tick + "yaml", "no step has a block"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.ReplaceAll(document, test.old, test.replacement)
			require.NotEqual(t, document, changed)
			found, err := find(splitSections(changed), "Stop a thing")
			require.NoError(t, err)
			_, err = found.parse()
			assert.ErrorContains(t, err, test.want)
		})
	}
	_, err := find(splitSections(document), "Start a thing")
	assert.ErrorContains(t, err, `no section "Start a thing"`)
}

func TestValues(t *testing.T) {
	variables := []variable{{name: "NAME"}, {name: "KEY", exported: true}}
	block, err := set(variables, map[string]string{"NAME": "it's", "KEY": "a b"})
	require.NoError(t, err)
	assert.Equal(t, "NAME='it'\\''s'\nexport KEY='a b'\n", block)
	_, err = set(variables, map[string]string{"NAME": "x"})
	assert.EqualError(t, err, "no value for variable KEY")
	_, err = set(variables, map[string]string{"NAME": "x", "KEY": "y", "OTHER": "z"})
	assert.EqualError(t, err, "no variables [OTHER]")
}

func TestShell(t *testing.T) {
	start := func(t *testing.T) *shell {
		t.Helper()
		s, err := startShell(t.Context(), t.TempDir(), t.TempDir(), os.Environ())
		require.NoError(t, err)
		t.Cleanup(s.stop)
		return s
	}
	t.Run("blocks share variables, functions and the folder", func(t *testing.T) {
		s := start(t)
		_, err := s.run(t.Context(), "name=thing\nshow() { echo \"the $1\"; }\nmkdir sub\ncd sub\n")
		require.NoError(t, err)
		printed, err := s.run(t.Context(), "cat\nshow \"$name\"\npwd\n")
		require.NoError(t, err)
		assert.Contains(t, printed, "\nthe thing\n")
		assert.Contains(t, printed, s.dir+"/sub\n")
	})
	for name, block := range map[string]string{
		"a command fails":         "false\ntrue\n",
		"a part of a pipe fails":  "false | cat\n",
		"a variable is not set":   "echo $NONE\n",
		"a substitution fails":    "x=$(false)\n",
		"a loop has a failure":    "for i in 1 2; do test $i = 1; done\ntrue\n",
		"a command is not found":  "kubect get nodes\n",
		"the block is incomplete": "if true; then\n",
		"the block exits":         "exit 0\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			_, err := s.run(t.Context(), block)
			require.Error(t, err)
			_, err = s.run(t.Context(), "true\n")
			assert.Error(t, err, "the shell does not continue")
		})
	}
	t.Run("a block does not end", func(t *testing.T) {
		s := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := s.run(ctx, "while :; do :; done\n")
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
