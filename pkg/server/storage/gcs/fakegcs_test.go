// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/gcs/gcstest"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// startFake runs fake-gcs-server, an imitation of Cloud Storage that others wrote
// (https://github.com/fsouza/fake-gcs-server), until the end of the test, with buckets. It skips
// the test unless it is required.
func startFake(t *testing.T, buckets ...string) (address string) {
	t.Helper()
	if os.Getenv("NSTANCE_TEST_MOTO") == "" {
		t.Skip("NOT TESTED with fake-gcs-server: NSTANCE_TEST_MOTO is not set (make test-moto)")
	}
	// Another program may take a port that was free.
	for range 5 {
		if address = tryFake(t); address != "" {
			break
		}
	}
	require.NotEmpty(t, address, "fake-gcs-server has not started")
	for _, name := range buckets {
		response := send(t, address, http.MethodPost, "/storage/v1/b?project=p", "application/json", fmt.Appendf(nil, `{"name": %q}`, name))
		require.Equal(t, http.StatusOK, response.Code)
	}
	return address
}

// tryFake runs fake-gcs-server at a port that was free, and returns its address, or an empty text if
// it has ended before it listens.
func tryFake(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	program := exec.Command("fake-gcs-server", "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", port)
	printed, err := program.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	lines := bufio.NewScanner(printed)
	var log []string
	for lines.Scan() {
		log = append(log, lines.Text())
		if strings.Contains(lines.Text(), "server started at http://127.0.0.1:"+port) {
			go func() { _, _ = io.Copy(io.Discard, printed) }() // ends with the process
			t.Cleanup(func() {
				assert.NoError(t, program.Process.Kill())
				_ = program.Wait() // the error is that it was killed
			})
			return "http://127.0.0.1:" + port
		}
	}
	t.Logf("fake-gcs-server has ended: %v: %s", program.Wait(), strings.Join(log, "\n"))
	return ""
}

// send makes a request, and reads its response.
func send(t *testing.T, address, method, path, contentType string, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address+path, bytes.NewReader(body))
	require.NoError(t, err)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	recorded := httptest.NewRecorder()
	for name, values := range response.Header {
		recorded.Header()[name] = values
	}
	recorded.WriteHeader(response.StatusCode)
	_, err = io.Copy(recorded.Body, response.Body)
	require.NoError(t, err)
	return recorded
}

// withMessages passes requests on, and gives responses about missing objects of a bucket the
// message of Cloud Storage: fake-gcs-server responds as if the bucket were missing.
func withMessages(t *testing.T, address string, buckets ...string) http.Handler {
	t.Helper()
	target, err := url.Parse(address)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(response *http.Response) error {
		name, object, isObject := strings.Cut(strings.TrimPrefix(response.Request.URL.Path, "/storage/v1/b/"), "/o/")
		if response.StatusCode != http.StatusNotFound || !isObject || !slices.Contains(buckets, name) {
			return nil
		}
		body := fmt.Appendf(nil, `{"error": {"code": 404, "message": "No such object: %s/%s"}}`, name, object)
		if response.Request.URL.Query().Get("alt") == "media" {
			body = fmt.Appendf(nil, "No such object: %s/%s", name, object)
		}
		response.Body = io.NopCloser(bytes.NewReader(body))
		response.ContentLength = int64(len(body))
		response.Header.Set("Content-Length", fmt.Sprint(len(body)))
		return nil
	}
	return proxy
}

// TestFakeGCSServer: the storage passes its suite with an imitation that others wrote.
func TestFakeGCSServer(t *testing.T) {
	n := &storagetest.Network{Method: http.MethodPost}
	server := httptest.NewServer(n.Connect(withMessages(t, startFake(t, bucket), bucket)))
	t.Cleanup(server.Close)
	t.Setenv(emulatorEnv, server.URL)
	storagetest.Conformance(t, func(t testing.TB) storage.Store { return openBucket(t) })
	n.RetriedWrites(t, func() storage.Store { return openBucket(t) }, 0, http.StatusServiceUnavailable)
	another, err := Open("another")
	require.NoError(t, err)
	storagetest.MissingBucket(t, another, "another", "1")
}

// exchange is a response as far as the storage reads it.
type exchange struct {
	Status int
	// Reason is the reason of an error.
	Reason string
	// Headers are the headers that a response has, Body a download, and Members the members of an
	// object or of a list that a response has.
	Headers []string
	Body    string
	Members []string
	// Names are the listed objects.
	Names []string
	More  bool
}

// exchanges makes the requests of the storage, and more, and returns what was responded.
func exchanges(t *testing.T, address string) map[string]exchange {
	t.Helper()
	all := map[string]exchange{}
	var token, generation string
	do := func(title, method, path, contentType string, body []byte) {
		response := send(t, address, method, path, contentType, body)
		got := exchange{Status: response.Code}
		var content struct {
			Kind, NextPageToken, Generation string
			Metadata                        map[string]string
			Items                           []struct{ Name, Generation string }
			Error                           struct{ Errors []struct{ Reason string } }
		}
		if strings.Contains(path, "alt=media") {
			for _, name := range []string{"X-Goog-Generation", "X-Goog-Hash", "Last-Modified"} {
				if got.Status == http.StatusOK && response.Header().Get(name) != "" {
					got.Headers = append(got.Headers, name)
				}
			}
			if got.Status == http.StatusOK {
				got.Body = response.Body.String()
			}
		} else if json.Unmarshal(response.Body.Bytes(), &content) == nil {
			for _, e := range content.Error.Errors {
				got.Reason = e.Reason
			}
			token, generation = content.NextPageToken, content.Generation
			got.More = token != ""
			if isGeneration(generation) {
				got.Members = append(got.Members, "generation")
			}
			// fake-gcs-server has no masks of fields.
			if content.Metadata[writeMetadata] != "" && strings.Contains(path, "metadata") {
				got.Members = append(got.Members, "metadata")
			}
			if content.Kind == "storage#objects" {
				got.Members = append(got.Members, "kind")
			}
			for _, item := range content.Items {
				got.Names = append(got.Names, item.Name)
				if !isGeneration(item.Generation) {
					got.Members = append(got.Members, "no generation of "+item.Name)
				}
			}
		}
		all[title] = got
	}
	put := func(title, in, key, data, condition string, change func([]byte) []byte) {
		body, contentType, err := upload(key, []byte(data), "id")
		require.NoError(t, err)
		if change != nil {
			body = change(body)
		}
		do(title, http.MethodPost, "/upload/storage/v1/b/"+in+"/o?uploadType=multipart&fields=generation"+condition, contentType, body)
	}
	object := "/storage/v1/b/" + bucket + "/o/"
	put("create", bucket, "a", "one", "&ifGenerationMatch=0", nil)
	first := generation
	put("create what exists", bucket, "a", "two", "&ifGenerationMatch=0", nil)
	put("replace", bucket, "a", "two", "&ifGenerationMatch="+first, nil)
	put("replace what was replaced", bucket, "a", "three", "&ifGenerationMatch="+first, nil)
	put("replace what does not exist", bucket, "b", "three", "&ifGenerationMatch="+first, nil)
	put("another checksum", bucket, "c", "data", "", func(body []byte) []byte {
		return bytes.Replace(body, []byte("\r\ndata\r\n"), []byte("\r\ndate\r\n"), 1)
	})
	put("a missing bucket", "another", "a", "one", "&ifGenerationMatch=0", nil)
	put("an escaped name", bucket, "folder/ü %?#", "escaped", "", nil)
	do("download", http.MethodGet, object+"a?alt=media", "", nil)
	do("download an escaped name", http.MethodGet, object+url.PathEscape("folder/ü %?#")+"?alt=media", "", nil)
	do("download nothing", http.MethodGet, object+"b?alt=media", "", nil)
	do("read", http.MethodGet, object+"a?fields=generation,metadata", "", nil)
	do("read nothing", http.MethodGet, object+"b?fields=generation,metadata", "", nil)
	put("one more", bucket, "folder/z", "one", "&ifGenerationMatch=0", nil)
	fields := "fields=" + url.QueryEscape("kind,nextPageToken,items(name,generation)")
	do("list", http.MethodGet, "/storage/v1/b/"+bucket+"/o?"+fields, "", nil)
	do("list a page", http.MethodGet, "/storage/v1/b/"+bucket+"/o?maxResults=2&"+fields, "", nil)
	do("list the next page", http.MethodGet, "/storage/v1/b/"+bucket+"/o?maxResults=2&pageToken="+url.QueryEscape(token)+"&"+fields, "", nil)
	do("list a prefix", http.MethodGet, "/storage/v1/b/"+bucket+"/o?prefix=folder%2F&"+fields, "", nil)
	do("list nothing", http.MethodGet, "/storage/v1/b/"+bucket+"/o?prefix=nothing&"+fields, "", nil)
	do("list a missing bucket", http.MethodGet, "/storage/v1/b/another/o?"+fields, "", nil)
	do("delete", http.MethodDelete, object+"a", "", nil)
	do("delete nothing", http.MethodDelete, object+"a", "", nil)
	put("create what was deleted", bucket, "a", "one", "&ifGenerationMatch=0", nil)
	return all
}

// TestDoubleRespondsAsFakeGCSServer, but for what is listed.
func TestDoubleRespondsAsFakeGCSServer(t *testing.T) {
	theirs := exchanges(t, startFake(t, bucket))
	ours := exchanges(t, gcstest.Start(t, nil, bucket).URL)
	require.Len(t, ours, 23)
	// Our double has no content where the service has none
	// (https://cloud.google.com/storage/docs/json_api/v1/objects/delete).
	deletion := theirs["delete"]
	assert.Equal(t, http.StatusOK, deletion.Status)
	deletion.Status = http.StatusNoContent
	theirs["delete"] = deletion
	for title, got := range ours {
		assert.Equal(t, theirs[title], got, title)
	}
}
