// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestAnOutage: whatever is wrong with the responses of the daemon, neither a list nor a
// lookup says that a container does not exist. What says that no container exists says so of
// a lookup only: the list fails, so that there is none.
func TestAnOutage(t *testing.T) {
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, handler := range map[string]http.HandlerFunc{
		"lost connections":  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"HTTP 400":          respond(http.StatusBadRequest, `{"message": "client version 1.0 is too old"}`),
		"HTTP 403":          respond(http.StatusForbidden, `{"message": "forbidden"}`),
		"HTTP 404":          respond(http.StatusNotFound, `{"message": "page not found"}`),
		"HTTP 500":          respond(http.StatusInternalServerError, `{"message": "layer does not exist"}`),
		"HTTP 502":          respond(http.StatusBadGateway, "<html></html>"),
		"HTTP 503":          respond(http.StatusServiceUnavailable, ""),
		"an empty response": respond(http.StatusOK, ""),
		"half a response":   respond(http.StatusOK, `[{"Id": "a"}, `),
		"another response":  respond(http.StatusOK, "<html></html>"),
	} {
		t.Run(name, func(t *testing.T) {
			daemon := httptest.NewServer(handler)
			defer daemon.Close()
			options := &docker.Options{Host: strings.Replace(daemon.URL, "http://", "tcp://", 1)}
			api, err := options.NewAPI(provider.Shard{ClusterID: "test", ID: "a"})
			require.NoError(t, err)
			_, err = api.List(t.Context())
			require.Error(t, err, "list")
			id := providertest.NewID(t)
			_, found, err := api.Find(t.Context(), id)
			assert.False(t, found)
			if name != "HTTP 404" {
				require.Error(t, err, "find")
			}
			_, err = api.Launch(t.Context(), cloud.Request{Token: id, Spec: provider.Spec{
				ID: id, Group: instance.GroupKey{Tenant: "default", Group: "workers"}, Type: newType("tiny"), Subnet: "bridge",
				Args: map[string]any{"image": "image"},
			}})
			assert.Error(t, err, "launch")
		})
	}
}
