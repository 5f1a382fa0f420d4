// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
)

// site serves the userdata of group main.
type site struct {
	p     *Provisioner
	group groups.Group
	serve http.HandlerFunc
	// address is the URL of the userdata, with secrets in it.
	address string
	// encoding and sha256 are the values of the group's configuration.
	encoding, sha256 string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r) }))
	t.Cleanup(server.Close)
	s.address = strings.Replace(server.URL, "://", "://user:hunter2@", 1) + "/userdata?signature=hunter3"
	c := newConfig(t)
	s.p, _ = newProvisioner(t, c)
	s.group = *newGroup(t, c, "main")
	return s
}

// userdata returns the userdata of a spec.
func (s *site) userdata(ctx context.Context) (string, error) {
	group := s.group
	group.Userdata = config.Userdata{URL: s.address, SHA256: s.sha256, Encoding: s.encoding}
	spec, err := s.p.Spec(ctx, &group, newRecord(), "subnet-a")
	return string(spec.Userdata), err
}

// wants checks that err names the failed step and contains no secrets.
func (s *site) wants(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatal("got no error")
	}
	if !strings.Contains(err.Error(), `fetch the userdata of template "worker": `) || !strings.Contains(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if strings.Contains(err.Error(), "hunter") {
		t.Errorf("the error has a secret in it: %v", err)
	}
}

const minimal = "{{.Instance.ID}} {{.Nonce}}"

// packed returns text in gzip.
func packed(t *testing.T, text string) []byte {
	t.Helper()
	var data bytes.Buffer
	writer := gzip.NewWriter(&data)
	_, err := io.WriteString(writer, text)
	require.NoError(t, errors.Join(err, writer.Close()))
	return data.Bytes()
}

// TestUserdataIsDecodedAndThenRendered: the provider gets plain text in any case.
func TestUserdataIsDecodedAndThenRendered(t *testing.T) {
	const text = minimal + " {{.Vars.from}}"
	sources := map[string]string{
		"":            text,
		"plain":       text,
		"base64":      base64.StdEncoding.EncodeToString([]byte(text)),
		"gzip":        string(packed(t, text)),
		"base64+gzip": base64.StdEncoding.EncodeToString(packed(t, text)),
	}
	s := newSite(t)
	nonces := s.p.Nonces.(*nonces)
	wants := func(got string) {
		t.Helper()
		if want := instanceID + " " + nonces.signed[len(nonces.signed)-1] + " worker"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for encoding, source := range sources {
		t.Run("at a URL: "+encoding, func(t *testing.T) {
			s.encoding = encoding
			s.serve = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, source) }
			got, err := s.userdata(t.Context())
			require.NoError(t, err)
			wants(got)
		})
		t.Run("inline: "+encoding, func(t *testing.T) {
			group := s.group
			group.Userdata = config.Userdata{Inline: source, Encoding: encoding}
			spec, err := s.p.Spec(t.Context(), &group, newRecord(), "subnet-a")
			require.NoError(t, err)
			wants(string(spec.Userdata))
		})
	}
}

// TestGzipIsNotUnpackedOnTheWay: file servers often declare gzip as an HTTP content encoding.
func TestGzipIsNotUnpackedOnTheWay(t *testing.T) {
	s := newSite(t)
	s.encoding = config.EncodingGzip
	s.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed(t, minimal))
	}
	if got, err := s.userdata(t.Context()); err != nil || !strings.HasPrefix(got, instanceID+" ") {
		t.Errorf("got %q with error %v", got, err)
	}
}

// TestFetchedUserdataMustHaveItsEncoding: the error names the template.
func TestFetchedUserdataMustHaveItsEncoding(t *testing.T) {
	s := newSite(t)
	for _, tc := range []struct{ encoding, source, want string }{
		{"base64", "hunter2!", "must be base64: illegal base64 data at input byte 7"},
		{"gzip", "hunter2 " + minimal, "must be gzip: gzip: invalid header"},
		{"gzip", string(packed(t, minimal))[:20], "must be gzip: unexpected EOF"},
		{"gzip", string(packed(t, strings.Repeat("x", 1<<20+1))), "must have at most 1048576 bytes when decoded"},
		{"gzip", string(packed(t, "\n{{hunter2}}")), "must be a Go template: mistake in line 2"},
	} {
		s.encoding = tc.encoding
		s.serve = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tc.source) }
		_, err := s.userdata(t.Context())
		want := "prepare instance " + instanceID + ` of group default/main: the userdata of template "worker" ` + tc.want
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestUserdataIsFetchedForEachInstance(t *testing.T) {
	s := newSite(t)
	for _, version := range []string{"one", "two"} {
		s.serve = func(w http.ResponseWriter, r *http.Request) {
			if _, password, _ := r.BasicAuth(); password != "hunter2" || r.FormValue("signature") != "hunter3" {
				t.Errorf("the request is for %s", r.URL)
			}
			_, _ = io.WriteString(w, version+" {{.Vars.from}} "+minimal)
		}
		got, err := s.userdata(t.Context())
		if err != nil || !strings.HasPrefix(got, version+" worker "+instanceID+" ") {
			t.Errorf("got %q with error %v, want version %s", got, err, version)
		}
	}
}

// TestUnchangedUserdataIsNotSentAgain: it is requested with the etag of the last response.
func TestUnchangedUserdataIsNotSentAgain(t *testing.T) {
	s := newSite(t)
	version, sent, requests := "one", 0, 0
	s.serve = func(w http.ResponseWriter, r *http.Request) {
		requests++
		w.Header().Set("ETag", `"`+version+`"`)
		if r.Header.Get("If-None-Match") == `"`+version+`"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent++
		_, _ = io.WriteString(w, version+" "+minimal)
	}
	for _, version = range []string{"one", "one", "two", "two", "one"} {
		got, err := s.userdata(t.Context())
		if err != nil || !strings.HasPrefix(got, version+" "+instanceID) {
			t.Errorf("got %q with error %v, want version %s", got, err, version)
		}
	}
	if sent != 3 || requests != 5 {
		t.Errorf("it was requested %d times and sent %d times, want 5 and 3", requests, sent)
	}
	// A server that reports unchanged userdata without having sent it is wrong.
	s.address += "&other=1"
	s.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }
	_, err := s.userdata(t.Context())
	s.wants(t, err, "the response is 304 Not Modified")
}

func TestFetchedPagesAreLimited(t *testing.T) {
	var p pages
	for n := range 2 * maxPages {
		p.put(fmt.Sprint("http://", n), page{etag: "x"})
		p.put("http://0", page{etag: "y"})
	}
	if len(p.byURL) != maxPages || len(p.urls) != maxPages {
		t.Errorf("%d pages of %d urls are kept, want %d", len(p.byURL), len(p.urls), maxPages)
	}
	if _, found := p.get("http://0"); !found {
		t.Error("the one that was put last is removed")
	}
	p.put("http://0", page{})
	if _, found := p.get("http://0"); found {
		t.Error("a content without an etag is kept")
	}
}

func TestUserdataHasALimit(t *testing.T) {
	s := newSite(t)
	length := 1 << 20
	s.serve = func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, minimal+strings.Repeat("x", length-len(minimal)))
	}
	if _, err := s.userdata(t.Context()); err != nil {
		t.Errorf("1 MiB gives %v", err)
	}
	length++
	_, err := s.userdata(t.Context())
	s.wants(t, err, "it has more than 1048576 bytes")

	// A response without an end is not read to its end.
	s.serve = func(w http.ResponseWriter, _ *http.Request) {
		for err := error(nil); err == nil; {
			_, err = io.WriteString(w, strings.Repeat("x", 1<<16))
		}
	}
	_, err = s.userdata(t.Context())
	s.wants(t, err, "it has more than 1048576 bytes")
}

func TestFetchingFails(t *testing.T) {
	s := newSite(t)
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"an error page": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, minimal)
		}, "from 127.0.0.1:"},
		"its status": {http.NotFound, "the response is 404 Not Found"},
		"an answer that breaks off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, minimal)
		}, "unexpected EOF"},
		"a file": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "file:///etc/hunter2")
			w.WriteHeader(http.StatusFound)
		}, "is followed only if the configuration has the sha256"},
	} {
		t.Run(name, func(t *testing.T) {
			s.serve = tc.serve
			_, err := s.userdata(t.Context())
			s.wants(t, err, tc.want)
		})
	}
	s.address = "http://user:hunter2@127.0.0.1:1/"
	_, err := s.userdata(t.Context())
	s.wants(t, err, "connection refused")
	s.address = "http://hunter2\x7f/"
	_, err = s.userdata(t.Context())
	s.wants(t, err, "invalid control character in URL")
}

func sum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// A host that answers for the address in the URL does not decide what runs on machines.
func TestFetchedUserdataMustHaveItsHash(t *testing.T) {
	s := newSite(t)
	content := "version 1 " + minimal
	s.serve = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, content)
	}
	s.sha256 = sum(content)
	for range 2 { // the second time from the cache
		got, err := s.userdata(t.Context())
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(got, "version 1 "+instanceID))
	}
	// The content that is known is checked too, and so is what was not sent again.
	s.sha256 = sum("version 2 " + minimal)
	_, err := s.userdata(t.Context())
	s.wants(t, err, "its SHA-256 is "+sum(content)+", and userdata.sha256 is "+s.sha256)
	s.address += "&other=1"
	content = "evil " + minimal
	_, err = s.userdata(t.Context())
	s.wants(t, err, "its SHA-256 is "+sum(content))
	// The hash is the one of the content before it is decoded.
	content, s.encoding = base64.StdEncoding.EncodeToString([]byte(minimal)), config.EncodingBase64
	s.sha256, s.address = sum(content), s.address+"&other=2"
	_, err = s.userdata(t.Context())
	require.NoError(t, err)
}

// Without a hash, the host of the URL alone decides.
func TestRedirectsOfUserdata(t *testing.T) {
	serve := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, minimal) }
	other := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(other.Close)
	for name, tc := range map[string]struct {
		to, sha256, want string
	}{
		"the same host":                {to: "/v2"},
		"another host":                 {to: other.URL + "/v2", want: "a redirect to another host, " + strings.TrimPrefix(other.URL, "http://") + ", is followed only if"},
		"another host, checked":        {to: other.URL + "/v2", sha256: sum(minimal)},
		"another host, other content":  {to: other.URL + "/v2", sha256: sum("other"), want: "its SHA-256 is " + sum(minimal)},
		"the same host, other content": {to: "/v2", sha256: sum("other"), want: "its SHA-256 is " + sum(minimal)},
		"to itself":                    {to: "/userdata", want: "there are more than 10 redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.sha256 = tc.sha256
			s.serve = func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/userdata" {
					http.Redirect(w, r, tc.to, http.StatusFound)
					return
				}
				serve(w, r)
			}
			_, err := s.userdata(t.Context())
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			s.wants(t, err, tc.want)
		})
	}
}

func TestNoRedirectFromHTTPSToHTTP(t *testing.T) {
	request := func(address string) *http.Request {
		parsed, err := http.NewRequest(http.MethodGet, address, nil)
		require.NoError(t, err)
		return parsed
	}
	require.ErrorContains(t, sameHost(request("http://a/"), []*http.Request{request("https://a/")}), "a redirect from https to http")
	// The second redirect leaves TLS.
	require.Error(t, sameHost(request("http://a/"), []*http.Request{request("https://a/"), request("https://a/2")}))
	require.NoError(t, sameHost(request("https://a/2"), []*http.Request{request("https://a/")}))
	require.NoError(t, sameHost(request("https://a/"), []*http.Request{request("http://a/")}))
}

func TestFetchingStopsWithItsContext(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.serve = func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}
	_, err := s.userdata(ctx)
	s.wants(t, err, "context canceled")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not wrap the error of the context", err)
	}
}

// silence is a network without responses.
type silence struct{}

func (silence) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestFetchingTakesTenSeconds(t *testing.T) {
	s := newSite(t)
	s.p.client.Transport = silence{}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := s.p.fetch(t.Context(), config.Userdata{URL: s.address})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 10*time.Second {
			t.Errorf("after %s got %v", took, err)
		}
	})
}
