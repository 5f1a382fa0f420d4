// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest/pipetest"
)

// daemon has the containers of a test in memory, with the calls that API makes. With an
// outage it responds as that does.
type daemon struct {
	mu sync.Mutex
	// labels of the containers that run, by name.
	labels map[string]map[string]string
	made   int
	calls  map[string]int
	outage http.HandlerFunc
}

// newAPI serves in memory and returns the calls of a shard.
func (d *daemon) newAPI(t *testing.T) *API {
	t.Helper()
	listener := pipetest.Listen(2375)
	server := pipetest.NewServer(d.serve, listener)
	server.Start()
	t.Cleanup(server.Close)
	docker, err := client.New(client.WithHost("tcp://daemon:2375"), client.WithDialContext(listener.Dial))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, docker.Close()) })
	return &API{docker: docker, options: &Options{}, shard: provider.Shard{ClusterID: "test", ID: "a", Zone: "zone"}}
}

func (d *daemon) setOutage(outage http.HandlerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outage = outage
}

func (d *daemon) remove(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.labels, name)
}

// takeCalls returns how many calls of each method there were since the last time.
func (d *daemon) takeCalls() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = map[string]int{}
	return calls
}

func (d *daemon) serve(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.calls[r.Method]++
	outage := d.outage
	d.mu.Unlock()
	if outage != nil {
		outage(w, r)
		return
	}
	d.respond(w, r)
}

// respond makes the call of a path such as /v1.50/containers/NAME/start.
func (d *daemon) respond(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "_ping" {
		w.Header().Set("Api-Version", "1.44")
		return
	}
	switch last := parts[len(parts)-1]; {
	case parts[1] == "networks":
		respondJSON(w, http.StatusOK, map[string]any{"Name": last})
	case r.Method == http.MethodGet && len(parts) == 3:
		list := []container.Summary{}
		for name, labels := range d.labels {
			list = append(list, container.Summary{ID: name, Labels: labels, State: container.StateRunning})
		}
		respondJSON(w, http.StatusOK, list)
	case last == "create":
		var config container.Config
		_ = json.NewDecoder(r.Body).Decode(&config)
		d.labels[r.URL.Query().Get("name")] = config.Labels
		d.made++
		respondJSON(w, http.StatusCreated, map[string]any{"Id": r.URL.Query().Get("name")})
	case d.labels[parts[2]] == nil:
		respondJSON(w, http.StatusNotFound, map[string]any{"message": "No such container: " + parts[2]})
	case r.Method == http.MethodGet:
		respondJSON(w, http.StatusOK, map[string]any{
			"Id": parts[2], "Config": map[string]any{"Labels": d.labels[parts[2]]}, "State": map[string]any{"Status": "running"},
		})
	case r.Method == http.MethodDelete:
		delete(d.labels, parts[2])
		w.WriteHeader(http.StatusNoContent)
	default: // the archive with the userdata, start and stop
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
	}
}

func respondJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the connection may be closed
}
