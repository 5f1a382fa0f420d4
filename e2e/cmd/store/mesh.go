// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// mesh serves other nodes.
func (n *node) mesh() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /entries", func(w http.ResponseWriter, r *http.Request) {
		var entries []entry
		err := json.NewDecoder(r.Body).Decode(&entries)
		if err == nil {
			err = n.volume.put(entries...)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /entries/{key}", func(w http.ResponseWriter, r *http.Request) {
		e, found := n.volume.get(r.PathValue("key"))
		if !found {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(e)
	})
	return mux
}

// put stores entries on another node.
func (n *node) put(ctx context.Context, to member, entries []entry) error {
	if to.Name == n.members.self.Name {
		return n.volume.put(entries...)
	}
	body, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	response, err := n.call(ctx, http.MethodPost, to, "/entries", body)
	if err != nil {
		return fmt.Errorf("store %d entries on %s: %w", len(entries), to.Name, err)
	}
	return response.Body.Close()
}

// get reads the entry of a key on a node.
func (n *node) get(ctx context.Context, from member, key string) (e entry, found bool, err error) {
	if from.Name == n.members.self.Name {
		e, found = n.volume.get(key)
		return e, found, nil
	}
	response, err := n.call(ctx, http.MethodGet, from, "/entries/"+url.PathEscape(key), nil)
	if errors.Is(err, errNotFound) {
		return entry{}, false, nil
	}
	if err != nil {
		return entry{}, false, fmt.Errorf("read from %s: %w", from.Name, err)
	}
	defer response.Body.Close()
	err = json.NewDecoder(response.Body).Decode(&e)
	return e, err == nil, err
}

var errNotFound = errors.New("not found")

func (n *node) call(ctx context.Context, method string, to member, path string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+net.JoinHostPort(to.Address, strconv.Itoa(meshPort))+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := n.peers.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	_ = response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return nil, errNotFound
	}
	return nil, fmt.Errorf("%s %s: %s", method, path, response.Status)
}

// write stores a key on all nodes that own it.
func (n *node) write(ctx context.Context, key, value string) error {
	e := entry{key, value, time.Now().UnixNano()}
	owners := ownersOf(partitionOf(key), n.members.active(), n.replicas)
	if len(owners) == 0 {
		return errors.New("no node owns the key")
	}
	for _, owner := range owners {
		if err := n.put(ctx, owner, []entry{e}); err != nil {
			return err
		}
	}
	return nil
}

// read returns the newest entry of a key on all nodes. That a node cannot be read is an error
// only if no other has the key.
func (n *node) read(ctx context.Context, key string) (newest entry, found bool, err error) {
	for _, from := range append(n.members.others(), n.members.self) {
		e, has, readErr := n.get(ctx, from, key)
		err = errors.Join(err, readErr)
		if has && e.Version > newest.Version {
			newest, found = e, true
		}
	}
	if found {
		return newest, true, nil
	}
	return entry{}, false, err
}
