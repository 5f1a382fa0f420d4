// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package gcstest imitates the JSON API of Google Cloud Storage, for the calls that the
// storage makes. It rejects requests that Google's discovery document does not allow, and
// checks its own responses with the same document. It was never compared with the service.
package gcstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/googleapi/discoverytest"
)

// Server is an imitation of the service with its buckets.
type Server struct {
	// URL is the address of the server.
	URL string
	// Token is the access token that requests must have. If empty, they need no token.
	Token string
	// NoLastModified leaves Last-Modified out of downloads, as Google's storage-testbench does
	// (https://github.com/googleapis/storage-testbench/blob/main/gcs/object.py).
	NoLastModified bool
	// WriteInterval is the shortest time between two writes of one object name, which is a second
	// (https://cloud.google.com/storage/quotas#objects). Zero means no limit.
	WriteInterval time.Duration

	document *discoverytest.Document

	// mu guards the fields below.
	mu         sync.Mutex
	buckets    map[string]map[string]*object
	generation int64
	calls      map[string]int
	mistakes   []string
	// written is when an object name was written or deleted.
	written map[string]time.Time
	// throttled counts the writes that came too early.
	throttled int
}

// Start runs a server with empty buckets until the end of the test. middleware wraps it, for
// example to drop responses; it may be nil.
func Start(t testing.TB, middleware func(service http.Handler) http.Handler, buckets ...string) *Server {
	t.Helper()
	s := &Server{
		document: discoverytest.Load(t, discoverytest.Storage), generation: time.Now().UnixMicro(),
		buckets: map[string]map[string]*object{}, calls: map[string]int{}, written: map[string]time.Time{},
	}
	for _, name := range buckets {
		s.buckets[name] = map[string]*object{}
	}
	handler := http.Handler(http.HandlerFunc(s.serve))
	if middleware != nil {
		handler = middleware(handler)
	}
	server := httptest.NewServer(handler)
	s.URL = server.URL
	t.Cleanup(func() {
		server.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.mistakes) > 0 {
			t.Errorf("%d requests or responses were not as documented, the first: %s", len(s.mistakes), s.mistakes[0])
		}
	})
	return s
}

// Keys returns the names of the objects in a bucket, sorted.
func (s *Server) Keys(bucket string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.buckets[bucket]))
}

// Methods returns the methods that were called, sorted.
func (s *Server) Methods() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.calls))
}

// Throttled returns how many writes came too early.
func (s *Server) Throttled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.throttled
}

// throttle refuses a write of an object name that was written less than WriteInterval ago. The
// limit is for creation, replacement and deletion together
// (https://cloud.google.com/storage/docs/gcs429). mu must be locked.
func (s *Server) throttle(bucket, name string) error {
	name = bucket + "/" + name
	if s.WriteInterval == 0 || time.Since(s.written[name]) >= s.WriteInterval {
		return nil
	}
	s.throttled++
	return &failure{http.StatusTooManyRequests, "rateLimitExceeded", "The object " + name + " exceeded the rate limit for object mutation operations (create, update, and delete)."}
}

// failure is the response for an error.
type failure struct {
	status          int
	reason, message string
}

// Error returns the message.
func (f *failure) Error() string { return f.message }

// request is a request that the discovery document allows.
type request struct {
	*http.Request
	method       *discoverytest.Method
	bucket, name string
	// attributes and data are the parts of an upload.
	attributes, data []byte
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	media := r.Method == http.MethodGet && r.URL.Query().Get("alt") == "media"
	if s.Token != "" && r.Header.Get("Authorization") != "Bearer "+s.Token {
		s.respond(w, nil, nil, &failure{http.StatusUnauthorized, "authError", "Invalid Credentials"}, media)
		return
	}
	parsed, err := s.parse(r)
	if err != nil {
		s.mu.Lock()
		s.mistakes = append(s.mistakes, err.Error())
		s.mu.Unlock()
		s.respond(w, nil, nil, &failure{http.StatusBadRequest, "invalid", err.Error()}, media)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[parsed.method.ID]++
	data, err := s.handle(parsed)
	if stored, ok := data.(*object); ok && err == nil {
		if media {
			stored.download(w, s.NoLastModified)
			return
		}
		data = stored.resource()
	}
	s.respond(w, parsed, data, err, media)
}

// parse checks a call with the discovery document.
func (s *Server) parse(r *http.Request) (*request, error) {
	path, uploading := strings.CutPrefix(r.URL.EscapedPath(), "/upload")
	method, variables, err := s.document.Find(r.Method, path)
	if err != nil {
		return nil, err
	}
	parsed := &request{Request: r, method: method, bucket: variables["bucket"], name: variables["object"]}
	if err := method.CheckQuery(r.URL.Query()); err != nil {
		return nil, err
	}
	if uploading {
		return parsed, parsed.readUpload()
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return parsed, method.CheckBody(r, body)
}

// readUpload reads the two parts of the body, attributes and data.
func (r *request) readUpload() error {
	kind, options, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/related" || r.URL.Query().Get("uploadType") != "multipart" {
		return fmt.Errorf("%s: an upload of type %q: %w", r.method.ID, kind, err)
	}
	parts := multipart.NewReader(r.Body, options["boundary"])
	for n := 0; ; n++ {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) && n == 2 {
			return r.method.CheckRequest(r.attributes)
		}
		if err != nil {
			return fmt.Errorf("%s: part %d: %w", r.method.ID, n, err)
		}
		data, err := io.ReadAll(part)
		switch {
		case err != nil:
			return err
		case n == 0 && part.Header.Get("Content-Type") == "application/json":
			r.attributes = data
		case n == 1:
			r.data = data
		default:
			return fmt.Errorf("%s: part %d is not expected", r.method.ID, n)
		}
	}
}

// handle makes a call. mu must be locked.
func (s *Server) handle(r *request) (any, error) {
	objects, found := s.buckets[r.bucket]
	if !found {
		return nil, &failure{http.StatusNotFound, "notFound", "The specified bucket does not exist."}
	}
	switch r.method.ID {
	case "storage.objects.insert":
		return s.insert(r, objects)
	case "storage.objects.get":
		stored := objects[r.name]
		switch {
		case stored == nil:
			return nil, noObject(r.bucket, r.name)
		case r.URL.Query().Get("ifGenerationNotMatch") == strconv.FormatInt(stored.generation, 10):
			return nil, &failure{http.StatusNotModified, "notModified", ""}
		}
		return stored, nil
	case "storage.objects.delete":
		if err := s.throttle(r.bucket, r.name); err != nil {
			return nil, err
		}
		if objects[r.name] == nil {
			return nil, noObject(r.bucket, r.name)
		}
		delete(objects, r.name)
		s.written[r.bucket+"/"+r.name] = time.Now()
		return nil, nil
	case "storage.objects.list":
		return list(r, objects)
	}
	return nil, &failure{http.StatusNotImplemented, "notImplemented", r.method.ID + " is not implemented"}
}

// respond writes a response that is not a download. Errors of downloads are text.
func (s *Server) respond(w http.ResponseWriter, r *request, data any, err error, media bool) {
	if err != nil {
		f, ok := errors.AsType[*failure](err)
		if !ok {
			f = &failure{http.StatusInternalServerError, "backendError", err.Error()}
		}
		w.WriteHeader(f.status)
		if media {
			_, _ = io.WriteString(w, f.message)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
			"code": f.status, "message": f.message,
			"errors": []any{map[string]any{"message": f.message, "domain": "global", "reason": f.reason}},
		}})
		return
	}
	if data == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	body, err := json.Marshal(data)
	if fields := r.URL.Query().Get("fields"); err == nil && fields != "" {
		body, err = discoverytest.Mask(fields, body)
	}
	if err == nil {
		err = r.method.CheckResponse(body)
	}
	if err != nil {
		s.mistakes = append(s.mistakes, "response: "+err.Error()) // mu is locked
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	_, _ = io.Copy(w, bytes.NewReader(body)) // the client may have closed the connection
}
