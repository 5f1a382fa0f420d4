// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

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

// TestAnOutageOfTenMinutes: the daemon does not respond, or wrongly. No instance changes its
// state, none is terminated, and afterwards one that has really vanished is missing.
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
