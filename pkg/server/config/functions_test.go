// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// hostile are values that are code where they are not quoted.
var hostile = []string{
	"$(touch pwned)", "`touch pwned`", "'; touch pwned; '", `"; touch pwned; "`, "a\nEOF\ntouch pwned\n", "$HOME", `\`, "'", "''",
	"a\n  token: other", "{{.Nonce}}", "&x *x !!python", "- a", "# a", "true", "", " ", "é\u2028", "\t", "--flag", "</script>",
}

func execute(t testing.TB, text string, value any) string {
	t.Helper()
	parsed, err := NewTemplate("test").Parse(text)
	require.NoError(t, err)
	var rendered strings.Builder
	require.NoError(t, parsed.Execute(&rendered, value))
	return rendered.String()
}

// script is a script as userdata is: a value in a command, in a document and in base64.
const script = `printf %s {{shellQuote .}} >word
cat >document.yaml <<'EOF'
value: {{toJSON .}}
EOF
cat >document.json <<'EOF'
{"value": {{toJSON .}}}
EOF
printf %s {{b64enc .}} | base64 -d >decoded
`

// TestValuesAreNoCode runs a script for each hostile value: the value arrives as text
// everywhere, and nothing else happens.
func TestValuesAreNoCode(t *testing.T) {
	for _, value := range hostile {
		dir := t.TempDir()
		command := exec.CommandContext(t.Context(), "sh", "-eu", "-c", execute(t, script, value))
		command.Dir = dir
		output, err := command.CombinedOutput()
		require.NoError(t, err, "%q: %s", value, output)
		got := folder(t, dir)
		var fromYAML, fromJSON struct{ Value string }
		require.NoError(t, yaml.Unmarshal([]byte(got["document.yaml"]), &fromYAML), "%q", value)
		require.NoError(t, json.Unmarshal([]byte(got["document.json"]), &fromJSON), "%q", value)
		assert.Equal(t, map[string]string{"word": value, "yaml": value, "json": value, "decoded": value},
			map[string]string{"word": got["word"], "yaml": fromYAML.Value, "json": fromJSON.Value, "decoded": got["decoded"]})
		assert.Len(t, got, 4, "%q: files of the script", value)
	}
}

func TestFunctions(t *testing.T) {
	value := map[string]any{"a": []string{"b", "<c>"}}
	assert.Equal(t, `{"a":["b","<c>"]}`, execute(t, "{{toJSON .}}", value))
	assert.Equal(t, "a:\n- b\n- <c>", execute(t, "{{toYAML .}}", value))
	assert.Equal(t, "x:\n  a:\n  - b\n  - <c>\n", execute(t, "x:\n{{toYAML . | indent 2}}\n", value))
	assert.Equal(t, "a\n\n", execute(t, "{{indent 0 .}}", "a\n\n"))
	for _, wrong := range []string{`{{shellQuote "a\x00"}}`, `{{indent -1 "a"}}`, `{{indent 101 "a"}}`} {
		parsed, err := NewTemplate("test").Parse(wrong)
		require.NoError(t, err)
		assert.Error(t, parsed.Execute(&strings.Builder{}, nil), wrong)
	}
}

// FuzzShellQuote: a shell prints what was quoted.
func FuzzShellQuote(f *testing.F) {
	for _, value := range hostile {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		word, err := shellQuote(value)
		if err != nil {
			assert.Contains(t, value, "\x00")
			return
		}
		output, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+word).Output()
		require.NoError(t, err)
		assert.Equal(t, value, string(output))
	})
}

func folder(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	files := map[string]string{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
		files[entry.Name()] = string(data)
	}
	return files
}
