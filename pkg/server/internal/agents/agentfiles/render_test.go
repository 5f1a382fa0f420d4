// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"bytes"
	"crypto"
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// render makes the files of instance "a".
func (s *shard) render(t *testing.T, keys map[string]crypto.PublicKey) (*Patch, error) {
	t.Helper()
	i := newInstance("a")
	return s.renderer().patch(t.Context(), s.groups[workersKey], &i, keys)
}

func TestFilesOfEachKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard()
		patch, err := s.render(t, map[string]crypto.PublicKey{"kubelet": key("kubelet"), "other": key("other")})
		require.NoError(t, err)
		digests := map[source]string{
			{config.FileSecret, "app/token"}:     `digest of {"token": "hunter2"}`,
			{config.FileStorage, "files/object"}: "digest of {}",
		}
		hash, known := hashOf(s.groups[workersKey], digests)
		assert.True(t, known)
		assert.NotContains(t, hash, "hunter2")
		assert.Equal(t, &Patch{ConfigHash: hash, digests: digests, At: time.Now(), Files: []File{
			{"app.env", []byte("HOST=machine\nID=a\nROLE=worker\n")},
			{"app.json", []byte("{\n  \"on\": true,\n  \"replicas\": 3,\n  \"roles\": [\n    \"worker\"\n  ]\n}\n")},
			{"kubelet.crt", []byte("certificate for " + string(key("kubelet")))},
			{"object.json", []byte("{}")},
			{"text.json", []byte(`["10.0.0.7"]`)},
			{"token.json", []byte(`{"token": "hunter2"}`)},
		}}, patch)
		assert.Equal(t, []pki.Workload{{
			Server: true, CommonName: "system:node:a", Organizations: []string{"system:nodes"}, DNS: []string{"machine"},
			IP: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, URI: []*url.URL{{Scheme: "spiffe", Host: "x", Path: "/a"}}, TTL: 30 * time.Hour,
		}}, s.signed)
		assert.Equal(t, []string{"a: certificate for " + string(key("kubelet"))}, s.issued)
	})
}

// Certificates that cannot be issued are not sent.
func TestCertificatesThatAreNotIssued(t *testing.T) {
	s := newShard()
	s.issuing = errors.New("no space left on device")
	patch, err := s.render(t, map[string]crypto.PublicKey{"kubelet": key("kubelet")})
	assert.Nil(t, patch)
	require.ErrorIs(t, err, s.issuing)
	delete(s.groups[workersKey].Files, "kubelet.crt")
	_, err = s.render(t, nil)
	require.NoError(t, err, "without certificates")
}

func TestACertificateOfAClient(t *testing.T) {
	s := newShard()
	s.config.Certificates["kubelet"] = config.CertificateTemplate{Usage: config.UsageClient, CommonName: "{{.Vars.role}}", TTL: time.Hour}
	_, err := s.render(t, map[string]crypto.PublicKey{"kubelet": key("kubelet")})
	require.NoError(t, err)
	assert.Equal(t, []pki.Workload{{CommonName: "worker", TTL: time.Hour}}, s.signed)
}

// A certificate waits until the provider confirms what the agent says of its machine.
func TestACertificateWaitsForTheAddressesOfTheProvider(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.setGroup(func(group *groups.Group) {
			group.Files = map[string]config.File{"kubelet.crt": files()["kubelet.crt"]}
		})
		reported := w.instances["a"]
		set := func(addresses []netip.Addr) {
			w.lock.Lock()
			defer w.lock.Unlock()
			i := reported
			i.Addresses = addresses
			w.instances["a"] = i
		}
		set(nil)
		session, end := w.ReceiveFiles("a")
		defer end()
		synctest.Wait()
		i := reported
		w.SubmitKeys(&i, map[string]crypto.PublicKey{"kubelet": key("kubelet")}, nil)
		w.report("a", "", nil)
		const failure = `default/workers a: files of instance a: make file kubelet.crt: certificate template "kubelet": ip: .Instance.IP4: `
		assert.Contains(t, w.takeFailures(), failure+"the provider reports no addresses of the instance, or not yet")
		set([]netip.Addr{netip.MustParseAddr("10.0.0.8")})
		pass(maxBackoff)
		assert.Contains(t, w.takeFailures(), failure+"the agent reports the address 10.0.0.7, must be one of those that the provider reports, [10.0.0.8]")
		wantNothing(t, session)
		assert.Empty(t, w.signed)
		set(reported.Addresses)
		pass(maxBackoff)
		wantPatch(t, session, "hash-1")
		assert.Len(t, w.signed, 1)
	})
}

// An instance gets all of its files or no file. The error names the file and shows no
// content.
func TestAFileThatCannotBeMade(t *testing.T) {
	change := func(change func(*config.CertificateTemplate)) func(*shard) {
		return func(s *shard) {
			template := s.config.Certificates["kubelet"]
			change(&template)
			s.config.Certificates["kubelet"] = template
		}
	}
	with := func(name string, file config.File) func(*shard) {
		return func(s *shard) { s.groups[workersKey].Files[name] = file }
	}
	env := func(value string) func(*shard) {
		return func(s *shard) {
			s.groups[workersKey].Vars["role"] = value
		}
	}
	for name, test := range map[string]struct {
		change func(*shard)
		want   string
	}{
		"a secret is missing":               {func(s *shard) { delete(s.secrets, "app/token") }, "make file token.json: app/token: not found"},
		"an object is missing":              {func(s *shard) { delete(s.objects, "files/object") }, "make file object.json: files/object: not found"},
		"a key of the cluster as a secret":  {func(s *shard) { s.secrets["app/token"] = "hunter2, key of the authority" }, "make file token.json: it has a private key of the cluster"},
		"a key of the cluster as an object": {func(s *shard) { s.objects["files/object"] = "hunter2, key of the authority" }, "make file object.json: it has a private key of the cluster"},
		"an unknown kind":                   {with("x.json", config.File{Kind: "magic"}), `make file x.json: has the unknown kind "magic"`},
		"a source of the servers":           {with("x.json", config.File{Kind: config.FileStorage, Content: map[string]any{"source": "secret/x"}}), "make file x.json: source must not be an object of the servers"},
		"a var in a text":                   {with("x.json", config.File{Kind: config.FileString, Content: map[string]any{"string": "hunter2 {{.Vars.missing}}"}}), "make file x.json: "},
		"a var in JSON":                     {with("x.json", config.File{Kind: config.FileJSON, Content: map[string]any{"json": []any{"hunter2 {{.Vars.missing}}"}}}), "make file x.json: "},
		"a var in an environment":           {with("x.env", config.File{Kind: config.FileEnv, Content: map[string]any{"env": map[string]any{"A": "hunter2 {{.Vars.missing}}"}}}), "make file x.env: A: "},
		"a value of two lines":              {env("hunter2\nPATH=/tmp"), "make file app.env: ROLE: a value must have one line"},
		"a carriage return":                 {env("hunter2\rPATH=/tmp"), "make file app.env: ROLE: a value must have one line"},
		"a zero byte":                       {env("hunter2\x00"), "make file app.env: ROLE: a value must have one line"},
		"a value that is no JSON":           {with("x.json", config.File{Kind: config.FileJSON, Content: map[string]any{"json": func() {}}}), "make file x.json: it cannot be encoded as JSON"},
		"no certificate template":           {func(s *shard) { delete(s.config.Certificates, "kubelet") }, `make file kubelet.crt: there is no certificate template "kubelet"`},
		"no key":                            {with("kubelet.crt", certificateFile("missing")), `make file kubelet.crt: the agent has not sent the key "missing"`},
		"no value of a common name":         {change(func(c *config.CertificateTemplate) { c.CommonName = "{{.Vars.missing}}" }), `make file kubelet.crt: certificate template "kubelet": cn: `},
		"no value of an organization": {change(func(c *config.CertificateTemplate) { c.Organizations = []string{"{{.Vars.missing}}"} }),
			`certificate template "kubelet": organization: `},
		"no value of a host name":  {change(func(c *config.CertificateTemplate) { c.DNS = []string{"{{.Vars.missing}}"} }), `certificate template "kubelet": dns: `},
		"no value of an address":   {change(func(c *config.CertificateTemplate) { c.IP = []string{"{{.Vars.missing}}"} }), `certificate template "kubelet": ip: `},
		"no value of a URI":        {change(func(c *config.CertificateTemplate) { c.URI = []string{"{{.Vars.missing}}"} }), `certificate template "kubelet": uri: `},
		"no host name":             {change(func(c *config.CertificateTemplate) { c.DNS = []string{"*.example.com"} }), `dns: "*.example.com" is no host name`},
		"no address":               {change(func(c *config.CertificateTemplate) { c.IP = []string{"10.0.0"} }), `ip: "10.0.0" is no address`},
		"no URI":                   {change(func(c *config.CertificateTemplate) { c.URI = []string{":x"} }), `uri: ":x" is no URI`},
		"a URI without its scheme": {change(func(c *config.CertificateTemplate) { c.URI = []string{"//x/y"} }), `uri: "//x/y" is no URI`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShard()
			test.change(s)
			patch, err := s.render(t, map[string]crypto.PublicKey{"kubelet": key("kubelet")})
			assert.Nil(t, patch)
			require.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}

// The caller distinguishes the errors of files.
func TestErrorsOfFilesAreWrapped(t *testing.T) {
	s := newShard()
	delete(s.secrets, "app/token")
	_, err := s.render(t, map[string]crypto.PublicKey{"kubelet": key("kubelet")})
	assert.ErrorIs(t, err, storage.ErrNotFound)
	r, failed := s.renderer(), errors.New("no CA")
	r.Sign = func(pki.Workload, crypto.PublicKey) ([]byte, error) { return nil, failed }
	i := newInstance("a")
	_, err = r.patch(t.Context(), s.groups[workersKey], &i, map[string]crypto.PublicKey{"kubelet": key("kubelet")})
	assert.ErrorIs(t, err, failed)
	assert.ErrorContains(t, err, "make file kubelet.crt: ")
}

// TestAFileHasALimit, because one message has the whole file.
func TestAFileHasALimit(t *testing.T) {
	s := newShard()
	s.groups[workersKey].Files = map[string]config.File{"a.json": {Kind: config.FileStorage, Content: map[string]any{"source": "a"}}}
	content := bytes.Repeat([]byte("1"), 1<<20)
	s.objects["a"] = string(content)
	patch, err := s.render(t, nil)
	require.NoError(t, err)
	assert.Equal(t, []File{{Name: "a.json", Content: content}}, patch.Files)
	s.objects["a"] += "1"
	_, err = s.render(t, nil)
	assert.EqualError(t, err, "make file a.json: it has 1048577 bytes, at most 1048576 are allowed")
}

func TestKeysOfAGroupAreNamedOnce(t *testing.T) {
	group := &groups.Group{Files: map[string]config.File{
		"a.crt": certificateFile("z"), "b.crt": certificateFile("a"), "c.crt": certificateFile("z"),
		"text.json": {Kind: config.FileString, Content: map[string]any{"string": strings.Repeat("x", 3)}}, "broken.crt": {Kind: config.FileCertificate},
	}}
	assert.Equal(t, []string{"a", "z"}, keysOf(group))
}
