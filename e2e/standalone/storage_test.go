// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"nstance.dev/operator/pkg/server/storage"
)

// The steps that a server makes in its storage.
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

// stored is which of its parts were written to a record since it was created.
type stored struct{ providerID, registration bool }

// step returns the step that a request to S3 is. The agent of an instance may register
// before the server stores the provider's id.
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

// done is that of a tap.
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
