// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"bytes"
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/storage"
)

const (
	// maxSize is above every size of the group while the server is killed at random, and lastSize
	// is its size in the end.
	maxSize, lastSize = 10, 6
	// pause is how long a server may make no step before it is killed in any case.
	pause = 2 * time.Second
)

// beforeAndAfter are all moments at which a server is killed at a step.
var beforeAndAfter = []when{before, after}

// killAtEachStep kills the server at moments of each step, each time while the size of the
// group changes, and returns how often.
func killAtEachStep(t *testing.T, s *server, o *operator, k *killer, moments []when, steps []string, change int32) (kills int) {
	t.Helper()
	for _, step := range steps {
		for _, at := range moments {
			fired := k.arm(at, func(name string) bool { return name == step })
			s.start()
			kills++
			o.size.Add(change)
			select {
			case <-fired:
			case <-time.After(waitTimeout):
				t.Fatalf("the server did not %s", step)
			}
		}
	}
	return kills
}

// killAtStep starts the server and kills it at a random step, at most after so many others,
// while the group gets a random size.
func killAtStep(s *server, o *operator, k *killer, random *rand.Rand, others int) {
	skip := random.IntN(others + 1)
	at := beforeAndAfter[random.IntN(2)]
	fired := k.arm(at, func(string) bool {
		skip--
		return skip < 0
	})
	s.start()
	o.size.Store(int32(random.IntN(maxSize)))
	select {
	case <-fired:
	case <-time.After(pause):
		if k.disarm() {
			s.kill()
		} else {
			<-fired
		}
	}
}

// tap passes the calls of a server on to a service, and lets a killer kill the server before or
// after a call.
type tap struct {
	killer *killer
	// name returns the step of a call, empty for a call at which the server is not killed.
	name func(*http.Request) string
	// done is called after each such call. It may be nil.
	done func(name string, r *http.Request, code int)

	service http.Handler
}

// wrap returns the tap of a service.
func (p *tap) wrap(service http.Handler) http.Handler {
	p.service = service
	return p
}

// ServeHTTP passes one call on.
func (p *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := p.name(r)
	if name == "" {
		p.service.ServeHTTP(w, r)
		return
	}
	point := p.killer.reached(name)
	if point == before {
		p.killer.strike()
		panic(http.ErrAbortHandler)
	}
	// A call that has reached the service has its effect, whether or not the server lives.
	response := httptest.NewRecorder()
	p.service.ServeHTTP(response, r.WithContext(context.WithoutCancel(r.Context())))
	if p.done != nil {
		p.done(name, r, response.Code)
	}
	if point == after {
		p.killer.strike()
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), response.Header())
	w.WriteHeader(response.Code)
	_, _ = w.Write(response.Body.Bytes()) // the server may have been killed
}

// when is the part of a call at which the server is killed.
type when string

const (
	never  when = ""
	before when = "before"
	after  when = "after"
)

// killer kills a server at a step.
type killer struct {
	kill func()

	// mu guards the fields below.
	mu sync.Mutex
	// armed is the moment at which the server is killed next, or never, and fired is closed when
	// it was killed.
	armed when
	match func(name string) bool
	fired chan struct{}
	// steps counts the steps by name.
	steps map[string]int
}

// arm makes the server be killed at the next step that match returns true for. The returned
// channel is closed when the server was killed.
func (k *killer) arm(at when, match func(name string) bool) (fired <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed, k.match, k.fired = at, match, make(chan struct{})
	return k.fired
}

// disarm reports whether the server has not been killed.
func (k *killer) disarm() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	armed := k.armed != never
	k.armed = never
	return armed
}

// reached counts a step and returns when to kill the server.
func (k *killer) reached(name string) when {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.steps == nil {
		k.steps = map[string]int{}
	}
	k.steps[name]++
	if k.armed == never || !k.match(name) {
		return never
	}
	at := k.armed
	k.armed = never
	return at
}

// counts returns how often each step was made.
func (k *killer) counts() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.steps)
}

// strike kills the server.
func (k *killer) strike() {
	k.kill()
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.fired)
}

// The steps of a server in its storage.
const (
	storeGroups       = "store the groups"
	createRecord      = "create the record"
	storeProviderID   = "store the provider id"
	storeRegistration = "store the registration"
	removeRecord      = "remove the record"
)

// recorded are all records that ever existed, by name.
type recorded struct {
	mu    sync.Mutex
	names map[string]*stored
}

// stored has the parts that were written to a record since it was created.
type stored struct{ providerID, registration bool }

// step returns the step of a request to S3. The agent of an instance may register before the
// server stores the provider's id.
func (r *recorded) step(request *http.Request) string {
	key := strings.TrimPrefix(request.URL.Path, "/"+bucket+"/")
	isRecord := strings.HasPrefix(key, storage.InstancePrefix(shardID))
	switch {
	case request.Method == http.MethodPut && key == storage.GroupsKey(shardID):
		return storeGroups
	case request.Method == http.MethodDelete && isRecord:
		return removeRecord
	case request.Method != http.MethodPut || !isRecord:
		return ""
	case request.Header.Get("If-None-Match") != "":
		return createRecord
	}
	body, err := io.ReadAll(request.Body)
	request.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.names[recordName(request.URL.Path)]
	switch {
	case before == nil:
		return ""
	case !before.providerID && bytes.Contains(body, []byte(`"provider_id"`)):
		return storeProviderID
	case !before.registration && bytes.Contains(body, []byte(`"registration"`)):
		return storeRegistration
	default:
		return ""
	}
}

// done is the function done of a tap.
func (r *recorded) done(name string, request *http.Request, code int) {
	if code != http.StatusOK {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	record := recordName(request.URL.Path)
	switch name {
	case createRecord:
		if r.names == nil {
			r.names = map[string]*stored{}
		}
		r.names[record] = &stored{}
	case storeProviderID:
		r.names[record].providerID = true
	case storeRegistration:
		r.names[record].registration = true
	}
}

func (r *recorded) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.names))
}
