// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcs

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
)

// network is the connection between the clients and the service.
type network struct {
	service http.Handler
	// fault handles the next request to write an object instead of the service.
	fault atomic.Pointer[http.HandlerFunc]
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		if fault := n.fault.Swap(nil); fault != nil {
			(*fault)(w, r)
			return
		}
	}
	n.service.ServeHTTP(w, r)
}

func TestRetriedWrites(t *testing.T) {
	n := &network{}
	start(t, func(service http.Handler) http.Handler {
		n.service = service
		return n
	}, bucket)
	s, other := openBucket(t), openBucket(t)

	// put creates the object, or replaces it if etag is not empty.
	put := func(s *Store, key, data, etag string) (string, error) {
		if etag == "" {
			return s.Create(t.Context(), key, []byte(data))
		}
		return s.Replace(t.Context(), key, []byte(data), etag)
	}
	for i, tc := range []struct {
		name string
		// fault handles the first attempt to write the object.
		fault func(r *http.Request, key, etag string) error
		// want is the error, and wantData the data of the object afterwards.
		want     error
		wantData string
	}{
		{
			name:     "the request is lost",
			fault:    func(*http.Request, string, string) error { return nil },
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
	} {
		for _, method := range []string{"Create", "Replace"} {
			for _, status := range []int{0, http.StatusServiceUnavailable} {
				t.Run(fmt.Sprintf("%s when %s with status %d", method, tc.name, status), func(t *testing.T) {
					key := fmt.Sprintf("%s/%d/%d", method, i, status)
					etag := ""
					if method == "Replace" {
						var err error
						etag, err = put(s, key, "before", "")
						require.NoError(t, err)
					}
					fault := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						assert.NoError(t, tc.fault(r, key, etag))
						if status == 0 {
							panic(http.ErrAbortHandler) // no response
						}
						w.WriteHeader(status)
					})
					n.fault.Store(&fault)
					newETag, err := put(s, key, "ours", etag)
					require.ErrorIs(t, err, tc.want)
					assert.Nil(t, n.fault.Load(), "a fault that did not happen")
					object, err := s.Get(t.Context(), key)
					require.NoError(t, err)
					assert.Equal(t, tc.wantData, string(object.Data))
					if tc.want == nil {
						assert.Equal(t, newETag, object.ETag)
					}
				})
			}
		}
	}
}

// TestEtagsOfNoObject: the generation 0 would create an object.
func TestEtagsOfNoObject(t *testing.T) {
	s := start(t, nil, bucket)
	store := openBucket(t)
	for _, etag := range []string{"0", "-1", "+1", "01", "1.0", "9223372036854775808"} {
		_, err := store.Replace(t.Context(), "a", nil, etag)
		require.ErrorIs(t, err, storage.ErrConflict, etag)
	}
	assert.Empty(t, s.Methods(), "calls")
}

// TestAttempts: a service that stays unavailable gives an error that is no conflict, and an
// error that would be the same again is not repeated.
func TestAttempts(t *testing.T) {
	for status, want := range map[int]int32{429: maxAttempts, 500: maxAttempts, 503: maxAttempts, 400: 1, 403: 1, 404: 1} {
		var requests atomic.Int32
		start(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.WriteHeader(status)
			})
		})
		_, err := openBucket(t).Create(t.Context(), "a", nil)
		require.ErrorContains(t, err, fmt.Sprint("HTTP ", status))
		require.NotErrorIs(t, err, storage.ErrConflict)
		assert.Equal(t, want, requests.Load(), status)
	}
}
