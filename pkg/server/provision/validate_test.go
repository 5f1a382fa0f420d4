// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// limitedOptions are the options of a provider that limits userdata, and whose machines have
// agents.
type limitedOptions struct {
	provider.Options
	agent bool
}

func (o limitedOptions) RunsAgent() bool { return o.agent }

func (limitedOptions) CheckUserdata(userdata []byte) error {
	if len(userdata) > 2000 {
		return errors.New("must be smaller")
	}
	return nil
}

// mistakes returns the mistakes in a configuration whose defaults and template worker have the given
// userdata, in JSON, or none.
func mistakes(t *testing.T, agent bool, defaults, worker string) []string {
	t.Helper()
	text := configuration
	replace := func(old, with string) {
		require.Contains(t, text, old)
		text = strings.Replace(text, old, with, 1)
	}
	if defaults == "" {
		replace(`"userdata": "{{.Instance.ID}} {{.Nonce}}",`, "")
	} else {
		replace(`"userdata": "{{.Instance.ID}} {{.Nonce}}",`, `"userdata": `+defaults+`,`)
	}
	if worker != "" {
		replace(`"kind": "knc", "arch": "amd64",`, `"kind": "knc", "arch": "amd64", "userdata": `+worker+`,`)
	}
	replace(`"operator_addr": ":0"`, `"operator_addr": ":0", "agent_addr": ":0"`)
	fake := providertest.Providers(types()...)[providertest.Name]
	c, err := config.Parse([]byte(text), provider.Registry{providertest.Name: func(o *jsonc.Object) provider.Options {
		return limitedOptions{fake(o), agent}
	}})
	require.NoError(t, err)
	return providertest.Messages(Validate(c))
}

// TestUserdataThatCannotWork is refused before a machine is created with it.
func TestUserdataThatCannotWork(t *testing.T) {
	const valid = `"#!/bin/sh\n{{.Instance.ID}} {{.Nonce}}"`
	for _, tc := range []struct{ name, worker, want string }{
		{"valid", `"#cloud-config\n{{.Instance.ID}} {{.Nonce}} {{.Vars.from}} {{.Server.RegistrationAddr}}"`, ""},
		{"a var that pools may set", `"#!/bin/sh\n{{.Instance.ID}} {{.Nonce}} {{.Vars.other | shellQuote}}"`, ""},
		{"what depends on a var", `"#!/bin/sh\n{{if .Vars.other}}{{.Instance.ID}} {{.Nonce}}{{end}}"`, ""},
		{"a URL", `{"url": "https://example.com/userdata"}`, ""},
		{"a comment of the template", `"{{- /* a note */ -}}\n#!/bin/sh\n{{.Instance.ID}} {{.Nonce}}"`, ""},
		{"no nonce", `"#!/bin/sh\n{{.Instance.ID}}"`, "must contain {{.Instance.ID}} and {{.Nonce}}"},
		{"no id", `"#!/bin/sh\n{{.Nonce}}"`, "must contain {{.Instance.ID}} and {{.Nonce}}"},
		{"a line before the first", `"{{/* a note */}}\n#!/bin/sh\n{{.Instance.ID}} {{.Nonce}}"`, "must not be empty or begin with white space"},
		{"a space", `" #!/bin/sh\n{{.Instance.ID}} {{.Nonce}}"`, "must not be empty or begin with white space"},
		{"a byte order mark", `"\ufeff#!/bin/sh\n{{.Instance.ID}} {{.Nonce}}"`, "must not begin with a byte order mark"},
		{"line ends of Windows", `"#!/bin/sh\r\n{{.Instance.ID}}\r\n{{.Nonce}}"`, "must have the line ends of Unix"},
		{"an unknown fact", `"#!/bin/sh\n{{.Instance.ID}} {{.Nonce}} {{.Instance.Hostname}}"`, "cannot be rendered: userdata:2:"},
		{"too large", `"#!/bin/sh\n{{.Instance.ID}} {{.Nonce}}` + strings.Repeat("x", 2000) + `"`, "must be smaller"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := mistakes(t, true, valid, tc.worker)
			if tc.want == "" {
				assert.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			assert.Contains(t, got[0], "templates.worker.userdata: Invalid value: "+tc.want)
			// It is the same for all templates without their own.
			got = mistakes(t, true, tc.worker, "")
			require.Len(t, got, 1)
			assert.Contains(t, got[0], "defaults.userdata: Invalid value: "+tc.want)
		})
	}
}

// TestNoUserdata is a mistake only if agents are expected.
func TestNoUserdata(t *testing.T) {
	assert.Empty(t, mistakes(t, false, "", ""))
	got := mistakes(t, true, "", "")
	require.Len(t, got, 2)
	assert.Contains(t, got[0], "templates.silent.userdata: Required value: every machine of provider fake has an agent")
	assert.Contains(t, got[1], "templates.worker.userdata: Required value")
}

// TestUserdataThatIsIgnored by cloud-init makes no machine, wherever it comes from.
func TestUserdataThatIsIgnored(t *testing.T) {
	const rest = "#!/bin/sh\n{{.Instance.ID}} {{.Nonce}}"
	s := newSite(t)
	for name, tc := range map[string]struct{ text, want string }{
		"a line before the first":   {"\n" + rest, "must not be empty or begin with white space"},
		"a comment of the template": {"{{/* a note */}}\n" + rest, "must not be empty or begin with white space"},
		"a byte order mark":         {"\ufeff" + rest, "must not begin with a byte order mark"},
		"line ends of Windows":      {strings.ReplaceAll(rest, "\n", "\r\n"), "must have the line ends of Unix"},
	} {
		for encoding, source := range map[string]string{
			config.EncodingPlain: tc.text, config.EncodingGzipBase64: base64.StdEncoding.EncodeToString(packed(t, tc.text)),
		} {
			t.Run(name+", inline, "+encoding, func(t *testing.T) {
				group := s.group
				group.Userdata = config.Userdata{Inline: source, Encoding: encoding}
				_, err := s.p.Spec(t.Context(), &group, newRecord(), "subnet-a")
				require.ErrorContains(t, err, `the userdata of template "worker" `+tc.want)
			})
			t.Run(name+", at a URL, "+encoding, func(t *testing.T) {
				s.encoding = encoding
				s.serve = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, source) }
				_, err := s.userdata(t.Context())
				require.ErrorContains(t, err, `the userdata of template "worker" `+tc.want)
			})
		}
	}
}

// TestUserdataOfNodeSettings: the sample has the settings of the template.
func TestUserdataOfNodeSettings(t *testing.T) {
	c := newConfig(t)
	worker := c.Templates["worker"]
	worker.Userdata = config.Userdata{Inline: "{{with .Node.MaxPods}}#{{.}}{{end}} {{.Instance.ID}} {{.Nonce}}"}
	c.Templates["worker"] = worker
	require.Len(t, Validate(c), 1, "it begins with white space")
	worker.Node.MaxPods = 17
	c.Templates["worker"] = worker
	require.Empty(t, Validate(c))
}
