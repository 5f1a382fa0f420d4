// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/providertest/pipetest"
)

// daemon has the containers of a test in memory, with the calls that API makes. With an
// outage it responds as that does.
type daemon struct {
	mu sync.Mutex
	// labels of the containers that run, by name.
	labels map[string]map[string]string
	// addresses of these containers, if they have any.
	addresses map[string]netip.Addr
	made      int
	calls     map[string]int
	outage    http.HandlerFunc
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
			list = append(list, container.Summary{ID: name, Labels: labels, State: container.StateRunning,
				NetworkSettings: &container.NetworkSettingsSummary{Networks: d.networks(name)}})
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
			"NetworkSettings": map[string]any{"Networks": d.networks(parts[2])},
		})
	case r.Method == http.MethodDelete:
		delete(d.labels, parts[2])
		w.WriteHeader(http.StatusNoContent)
	default: // the archive with the userdata, start and stop
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
	}
}

// networks returns the networks of a container. mu must be locked.
func (d *daemon) networks(name string) map[string]*network.EndpointSettings {
	address, found := d.addresses[name]
	if !found {
		return nil
	}
	return map[string]*network.EndpointSettings{"bridge": {IPAddress: address}}
}

func respondJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the connection may be closed
}

// world is a daemon in memory.
type world struct {
	*daemon
	t *testing.T
}

func inBubble(t *testing.T, test func(*testing.T, *world)) {
	synctest.Test(t, func(t *testing.T) {
		test(t, &world{&daemon{labels: map[string]map[string]string{}, calls: map[string]int{}}, t})
	})
}

func (w *world) startProvider() *providertest.Harness {
	api := w.newAPI(w.t)
	return providertest.Start(w.t, func(callContext provider.CallContextFunc) provider.Provider {
		return NewProvider(api, api.shard, callContext)
	})
}

var workers = instance.GroupKey{Tenant: "default", Group: "workers"}

func newSpec() provider.Spec {
	return provider.Spec{
		Group: workers, Kind: "knd", Subnet: "bridge", CreatedAt: time.Now(), Userdata: []byte("userdata"),
		Type: provider.InstanceType{Name: "tiny", CPU: resource.MustParse("1"), Memory: resource.MustParse("32Mi"), Arch: provider.ArchAMD64},
		Args: map[string]any{"image": "image"},
	}
}

// TestAnOutageOfTenMinutes: the daemon does not respond, or responds wrongly. No instance
// changes its state or is terminated. Afterwards an instance that has vanished is missing.
func TestAnOutageOfTenMinutes(t *testing.T) {
	status := func(code int) func(*world) http.HandlerFunc {
		return func(*world) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				respondJSON(w, code, map[string]any{"message": "not now"})
			}
		}
	}
	for name, outage := range map[string]func(*world) http.HandlerFunc{
		"no response": func(*world) http.HandlerFunc {
			return func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		},
		"lost connections": func(*world) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		},
		"HTTP 403": status(http.StatusForbidden),
		"HTTP 404": status(http.StatusNotFound),
		"HTTP 500": status(http.StatusInternalServerError),
		"HTTP 503": status(http.StatusServiceUnavailable),
		// A lookup finds the containers.
		"empty lists": func(w *world) http.HandlerFunc {
			return func(response http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/containers/json") {
					respondJSON(response, http.StatusOK, []any{})
				} else {
					w.respond(response, r)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				cloudtest.Outage{
					Start:  w.startProvider,
					Spec:   newSpec(),
					Begin:  func() { w.setOutage(outage(w)) },
					End:    func() { w.setOutage(nil) },
					Delete: w.remove,
					Calls:  w.takeCalls,
					IsRead: func(method string) bool { return method == http.MethodGet || method == http.MethodHead },
					Made:   func() int { return w.made },
				}.Test(t)
			})
		})
	}
}

// TestADeletionThatFindsNoContainer proves nothing, nor does a list that is empty.
func TestADeletionThatFindsNoContainer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		h := w.startProvider()
		id := h.MustRun(newSpec())
		w.setOutage(func(response http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method != http.MethodGet:
				respondJSON(response, http.StatusNotFound, map[string]any{"message": "No such container: " + id})
			case strings.HasSuffix(r.URL.Path, "/containers/json"):
				respondJSON(response, http.StatusOK, []any{})
			default:
				w.respond(response, r)
			}
		})
		h.MustDelete(id)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, map[string]instance.State{id: instance.Terminating}, h.States(workers))
		w.setOutage(nil)
		h.Await(workers, map[string]instance.State{id: providertest.Deleted})
		assert.Empty(t, w.labels)
	})
}

// TestAnAddressThatPassesOnAfterAList: the userdata of a container is only for its process, also
// while the list of addresses that has been read before is used.
func TestAnAddressThatPassesOnAfterAList(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		c := &containers{api: w.newAPI(t)}
		address, another := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")
		first, second := providertest.NewID(t), providertest.NewID(t)
		for _, id := range []string{first, second} {
			w.labels[id] = labelsOf(c.api.shard, provider.Spec{ID: id, Group: workers}, arguments{})
		}
		w.addresses = map[string]netip.Addr{first: address}
		i, err := c.Instance(t.Context(), address)
		require.NoError(t, err)
		assert.Equal(t, first, i.ID)

		w.addresses = map[string]netip.Addr{first: another, second: address}
		i, err = c.Instance(t.Context(), address)
		require.NoError(t, err)
		assert.Equal(t, second, i.ID)
	})
}

// TestDocumentedMetadata: the table of docs/providers.md has what an instance stores, and no
// more.
func TestDocumentedMetadata(t *testing.T) {
	shard := provider.Shard{ClusterID: "test", ID: "a", Region: "region", Zone: "zone"}
	labels := labelsOf(shard, providertest.MetadataSpec(t), arguments{})
	assert.Equal(t, providertest.DocumentedMetadata(t, Name), providertest.MetadataNames("nstance.dev/", labels))
}
