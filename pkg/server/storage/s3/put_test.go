// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
)

// network is the connection between the clients and the service.
type network struct {
	service http.Handler
	// fault handles the next request to write an object instead of the service.
	fault atomic.Pointer[http.HandlerFunc]
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		if fault := n.fault.Swap(nil); fault != nil {
			(*fault)(w, r)
			return
		}
	}
	n.service.ServeHTTP(w, r)
}

// cut closes the connection without a response.
func cut() { panic(http.ErrAbortHandler) }

func TestRetriedWrites(t *testing.T) {
	n := &network{}
	s3test.Start(t, func(service http.Handler) http.Handler {
		n.service = service
		return n
	})
	s3test.CreateBucket(t, bucket)
	s, other := open(t), open(t)

	// put creates the object, or replaces it if etag is not empty.
	put := func(s *Store, key, data, etag string) (string, error) {
		if etag == "" {
			return s.Create(t.Context(), key, []byte(data))
		}
		return s.Replace(t.Context(), key, []byte(data), etag)
	}
	tests := []struct {
		name string
		// fault handles the first attempt to write the object.
		fault func(r *http.Request, key, etag string) error
		// want is the error, and wantData the data of the object afterwards.
		want     error
		wantData string
	}{
		{
			name: "the request is lost",
			fault: func(*http.Request, string, string) error {
				return nil
			},
			wantData: "ours",
		},
		{
			name: "the response is lost",
			fault: func(r *http.Request, _, _ string) error {
				n.service.ServeHTTP(httptest.NewRecorder(), r)
				return nil
			},
			wantData: "ours",
		},
		{
			name: "the request is lost and another client writes the same",
			fault: func(_ *http.Request, key, etag string) error {
				_, err := put(other, key, "ours", etag)
				return err
			},
			want:     storage.ErrConflict,
			wantData: "ours",
		},
		{
			name: "the response is lost and another client writes after us",
			fault: func(r *http.Request, key, _ string) error {
				n.service.ServeHTTP(httptest.NewRecorder(), r)
				object, err := other.Get(t.Context(), key)
				if err != nil {
					return err
				}
				_, err = put(other, key, "theirs", object.ETag)
				return err
			},
			want:     storage.ErrConflict,
			wantData: "theirs",
		},
	}
	for i, tc := range tests {
		for _, method := range []string{"Create", "Replace"} {
			t.Run(method+" when "+tc.name, func(t *testing.T) {
				key := fmt.Sprintf("%s/%d", method, i)
				etag := ""
				if method == "Replace" {
					var err error
					etag, err = put(s, key, "before", "")
					require.NoError(t, err)
				}
				fault := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if err := tc.fault(r, key, etag); err != nil {
						t.Error(err)
					}
					cut()
				})
				n.fault.Store(&fault)
				newETag, err := put(s, key, "ours", etag)
				if !errors.Is(err, tc.want) {
					t.Fatalf("got error %v, want %v", err, tc.want)
				}
				if n.fault.Load() != nil {
					t.Error("the fault did not happen")
				}
				object, err := s.Get(t.Context(), key)
				require.NoError(t, err)
				if string(object.Data) != tc.wantData {
					t.Errorf("the object has data %q, want %q", object.Data, tc.wantData)
				}
				if tc.want == nil && object.ETag != newETag {
					t.Errorf("the object has etag %s, want that of the write, %s", object.ETag, newETag)
				}
			})
		}
	}

	// Two concurrent writes may both be rejected.
	t.Run("rejected", func(t *testing.T) {
		fault := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusConflict)
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", codeConditionalConflict)
		})
		n.fault.Store(&fault)
		if _, err := put(s, "rejected", "ours", ""); !errors.Is(err, storage.ErrConflict) {
			t.Errorf("got error %v, want one that wraps %q", err, storage.ErrConflict)
		}
		if _, err := s.Get(t.Context(), "rejected"); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("got error %v, want one that wraps %q", err, storage.ErrNotFound)
		}
	})
}
