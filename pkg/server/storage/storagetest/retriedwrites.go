// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storagetest

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

// Network is the connection between the clients and a service.
type Network struct {
	// Method is the method of the requests that write an object.
	Method string

	service http.Handler
	// fault handles the next request to write an object instead of the service.
	fault atomic.Pointer[http.HandlerFunc]
}

// Connect returns a handler for the requests to a service.
func (n *Network) Connect(service http.Handler) http.Handler {
	n.service = service
	return n
}

// ServeHTTP implements http.Handler.
func (n *Network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == n.Method {
		if fault := n.fault.Swap(nil); fault != nil {
			(*fault)(w, r)
			return
		}
	}
	n.service.ServeHTTP(w, r)
}

// Forward sends a request to the service.
func (n *Network) Forward(w http.ResponseWriter, r *http.Request) { n.service.ServeHTTP(w, r) }

// FailWrite makes fault handle the next request to write an object.
func (n *Network) FailWrite(fault http.HandlerFunc) { n.fault.Store(&fault) }

// lostWrites are the ways in which the response to the first attempt of a write is lost. The
// attempt of the client "s" writes "ours".
var lostWrites = []struct {
	name string
	// fault handles the first attempt to write the object.
	fault func(w writers, r *http.Request, key, etag string) error
	// want is the error, and wantData the data of the object afterwards.
	want     error
	wantData string
}{
	{
		name:     "the request is lost",
		fault:    func(writers, *http.Request, string, string) error { return nil },
		wantData: "ours",
	},
	{
		name: "the response is lost",
		fault: func(w writers, r *http.Request, _, _ string) error {
			w.service.ServeHTTP(httptest.NewRecorder(), r)
			return nil
		},
		wantData: "ours",
	},
	{
		name: "the request is lost and another client writes the same",
		fault: func(w writers, _ *http.Request, key, etag string) error {
			_, err := w.put(w.other, key, "ours", etag)
			return err
		},
		want:     storage.ErrConflict,
		wantData: "ours",
	},
	{
		name: "the response is lost and another client writes after us",
		fault: func(w writers, r *http.Request, key, _ string) error {
			w.service.ServeHTTP(httptest.NewRecorder(), r)
			object, err := w.other.Get(w.t.Context(), key)
			if err != nil {
				return err
			}
			_, err = w.put(w.other, key, "theirs", object.ETag)
			return err
		},
		want:     storage.ErrConflict,
		wantData: "theirs",
	},
}

// writers are the clients of one service.
type writers struct {
	*Network
	t        *testing.T
	s, other storage.Store
}

// put creates the object, or replaces it if etag is not empty.
func (w writers) put(s storage.Store, key, data, etag string) (string, error) {
	if etag == "" {
		return s.Create(w.t.Context(), key, []byte(data))
	}
	return s.Replace(w.t.Context(), key, []byte(data), etag)
}

// RetriedWrites tests that a write whose first attempt fails or has no response is repeated,
// and that its final result is reported. open returns a client of the network, and statuses
// are the statuses of the response to the first attempt, zero for no response.
func (n *Network) RetriedWrites(t *testing.T, open func() storage.Store, statuses ...int) {
	s, other := open(), open()
	for i, tc := range lostWrites {
		for _, method := range []string{"Create", "Replace"} {
			for _, status := range statuses {
				t.Run(fmt.Sprintf("%s when %s with status %d", method, tc.name, status), func(t *testing.T) {
					w := writers{n, t, s, other}
					key := fmt.Sprintf("%s/%d/%d", method, i, status)
					etag := ""
					if method == "Replace" {
						var err error
						etag, err = w.put(s, key, "before", "")
						require.NoError(t, err)
					}
					n.FailWrite(func(response http.ResponseWriter, r *http.Request) {
						assert.NoError(t, tc.fault(w, r, key, etag))
						if status == 0 {
							panic(http.ErrAbortHandler) // no response
						}
						response.WriteHeader(status)
					})
					newETag, err := w.put(s, key, "ours", etag)
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
