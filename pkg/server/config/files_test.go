// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withFile returns a configuration with one file, and a certificate template "c".
func withFile(name, content string) string {
	return fmt.Sprintf(required, ``, fmt.Sprintf(`"certificates": {"c": {"kind": "client", "cn": "x"}}, "defaults": {"files": {%q: %s}}`, name, content))
}

func TestFiles(t *testing.T) {
	for content, want := range map[string]FileSource{
		`{"kind": "secret", "source": "app/token"}`:                                                      {Source: "app/token"},
		`{"kind": "secret", "source": "app/token", "once": true}`:                                        {Source: "app/token", Once: true},
		`{"kind": "storage", "source": "files/a", "once": false}`:                                        {Source: "files/a"},
		`{"kind": "storage", "source": "files/a"}`:                                                       {Source: "files/a"},
		`{"kind": "storage", "source": "ca.crt"}`:                                                        {Source: "ca.crt"},
		`{"kind": "env", "env": {"A_1": "b"}}`:                                                           {Env: map[string]string{"A_1": "b"}},
		`{"kind": "json", "json": {"a": [1, null]}}`:                                                     {JSON: map[string]any{"a": []any{1.0, nil}}},
		`{"kind": "string", "string": "{{.Vars.role}}"}`:                                                 {String: "{{.Vars.role}}"},
		`{"kind": "certificate", "template": "c", "key": {"source": "agent", "name": "kubelet.server"}}`: {Template: "c", Key: "kubelet.server"},
	} {
		c := parsed(t, withFile("a.json", content))
		got, err := c.Defaults.Files["a.json"].Parse()
		require.NoError(t, err, content)
		assert.Equal(t, want, got, content)
	}
}

func TestInvalidFiles(t *testing.T) {
	for _, tc := range []struct{ name, content, want string }{
		{"a.sh", `{"kind": "string", "string": "x"}`, "end with .env, .crt, .pub, .key or .json"},
		{".a.env", `{"kind": "string", "string": "x"}`, "must consist of letters"},
		{"a.env", `{"kind": "secret", "source": "ca.key"}`, "source must not be an object of the servers"},
		{"a.env", `{"kind": "secret", "source": "registration-nonce.key"}`, "source must not be an object of the servers"},
		{"a.env", `{"kind": "secret", "source": "../ca.key"}`, "source must be a key of the storage"},
		{"a.env", `{"kind": "storage", "source": "secret/ca.key"}`, "source must not be an object of the servers"},
		{"a.env", `{"kind": "storage", "source": "secret/other"}`, "source must not be an object of the servers"},
		{"a.env", `{"kind": "storage", "source": "instance/a/x.json"}`, "source must not be an object of the servers"},
		{"a.env", `{"kind": "storage", "source": "config/a.jsonc"}`, "source must not be an object of the servers"},
		{"a.env", `{"kind": "secret", "source": "a", "once": "yes"}`, "once must be true or false"},
		{"a.env", `{"kind": "string", "string": "x", "once": true}`, `must not have "once"`},
		{"a.env", `{"kind": "storage"}`, "must have source, a string"},
		{"a.env", `{"kind": "env", "env": {"A-B": "x"}}`, "env must have names of letters"},
		{"a.env", `{"kind": "env", "env": {"A": 1}}`, "env must have names of letters"},
		{"a.env", `{"kind": "env"}`, "must have env, an object"},
		{"a.env", `{"kind": "json"}`, "must have json"},
		{"a.env", `{"kind": "string", "string": "x", "text": "y"}`, `must not have "text"`},
		{"a.env", `{"kind": "string", "string": "{{"}`, "must be a Go template"},
		{"a.env", `{"kind": "certificate", "template": "d", "key": {"source": "agent", "name": "k"}}`, `unknown certificate template, known are "c"`},
		{"a.env", `{"kind": "certificate", "template": "c", "key": {"source": "server", "name": "k"}}`, "must have key"},
		{"a.env", `{"kind": "certificate", "template": "c", "key": {"source": "agent", "name": "../k"}}`, "key.name must consist"},
	} {
		_, err := Parse([]byte(withFile(tc.name, tc.content)), providers)
		assert.ErrorContains(t, err, tc.want, "%s: %s", tc.name, tc.content)
	}
	for content, want := range map[string]string{
		`{"kind": "peer", "cn": "x"}`:              `certificates.c.kind: Unsupported value: "peer"`,
		`{"kind": "server", "cn": ""}`:             "certificates.c.cn: Required value",
		`{"kind": "server", "cn": "{{"}`:           "certificates.c.cn: Invalid value",
		`{"kind": "server", "cn": "x", "ttl": 0}`:  "certificates.c.ttl: Invalid value: 0",
		`{"kind": "server", "cn": "x", "dns": 1}`:  "certificates.c.dns",
		`{"kind": "server", "cn": "x", "role": 1}`: "certificates.c.role",
	} {
		_, err := Parse([]byte(fmt.Sprintf(required, ``, `"certificates": {"c": `+content+`}`)), providers)
		assert.ErrorContains(t, err, want, content)
	}
}
