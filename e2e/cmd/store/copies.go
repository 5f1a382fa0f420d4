// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/redcon"
)

// roundInterval is the time between two comparisons of the copies.
const roundInterval = 500 * time.Millisecond

// keepCopies runs a round at each roundInterval, until ctx is done.
func (n *node) keepCopies(ctx context.Context) error {
	tick := time.NewTicker(roundInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if !n.members.ready() {
			continue
		}
		if err := n.round(ctx); err != nil && ctx.Err() == nil {
			log.Printf("comparing copies: %v", err)
		}
	}
}

// round sends each entry to the nodes that own it. Then it removes the entries of
// partitions that this node does not own and all owners have. Only a complete round is
// counted.
func (n *node) round(ctx context.Context) error {
	active := n.members.active()
	parts := n.volume.byPartition()
	byOwner := map[member][]entry{}
	for partition, entries := range parts {
		for _, owner := range ownersOf(partition, active, n.replicas) {
			byOwner[owner] = append(byOwner[owner], entries...)
		}
	}
	var errs []error
	failed := map[member]bool{}
	for owner, entries := range byOwner {
		if err := n.put(ctx, owner, repairsPath, entries); err != nil {
			errs = append(errs, err)
			failed[owner] = true
		}
	}
	var foreign []entry
	for partition, entries := range parts {
		owners := ownersOf(partition, active, n.replicas)
		kept := slices.ContainsFunc(owners, func(o member) bool { return failed[o] || o.Name == n.members.self.Name })
		if !kept && len(owners) == n.replicas {
			foreign = append(foreign, entries...)
		}
	}
	if len(foreign) > 0 {
		errs = append(errs, n.volume.drop(foreign))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	n.rounds.add()
	return nil
}

// partitions is the number of partitions.
const partitions = 64

func partitionOf(key string) int {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key))
	return int(hash.Sum32() % partitions)
}

// ownersOf returns the nodes that have the copies of a partition, by rendezvous hashing.
func ownersOf(partition int, nodes []member, replicas int) []member {
	weight := func(m member) uint64 {
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%s/%d", m.Name, partition)
		return hash.Sum64()
	}
	owners := slices.SortedFunc(slices.Values(nodes), func(a, b member) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.Name, b.Name))
	})
	return owners[:min(replicas, len(owners))]
}

// mesh serves other nodes.
func (n *node) mesh() http.Handler {
	mux := http.NewServeMux()
	store := func(count func(stored int)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var entries []entry
			err := json.NewDecoder(r.Body).Decode(&entries)
			if err == nil {
				var stored int
				stored, err = n.volume.put(entries...)
				count(stored)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}
	}
	mux.HandleFunc("POST "+entriesPath, store(func(int) {}))
	mux.HandleFunc("POST "+repairsPath, store(func(stored int) { n.repaired.n.Add(int64(stored)) }))
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

// Paths at which a node gets entries: from clients, and from rounds of other nodes.
const entriesPath, repairsPath = "/entries", "/repairs"

// put stores entries on another node.
func (n *node) put(ctx context.Context, to member, path string, entries []entry) error {
	if to.Name == n.members.self.Name {
		_, err := n.volume.put(entries...)
		return err
	}
	body, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	response, err := n.call(ctx, http.MethodPost, to, path, body)
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
		if err := n.put(ctx, owner, entriesPath, []entry{e}); err != nil {
			return err
		}
	}
	return nil
}

// read returns the newest entry of a key on all nodes. If a node cannot be read, it returns
// an error only if no other node has the key.
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

// commandTimeout limits one command.
const commandTimeout = 5 * time.Second

// serveRESP serves clients until ctx is done: PING, GET and SET.
func (n *node) serveRESP(ctx context.Context) error {
	server := redcon.NewServer(fmt.Sprintf(":%d", respPort), func(c redcon.Conn, command redcon.Command) {
		n.serveCommand(ctx, c, command.Args)
	}, nil, nil)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

func (n *node) serveCommand(ctx context.Context, c redcon.Conn, args [][]byte) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	name := strings.ToLower(string(args[0]))
	if count := n.commands[name]; count != nil {
		count.add()
	}
	switch {
	case name == "ping":
		c.WriteString("PONG")
	case name == "get" && len(args) == 2:
		e, found, err := n.read(ctx, string(args[1]))
		switch {
		case err != nil:
			c.WriteError("ERR " + err.Error())
		case found:
			c.WriteBulkString(e.Value)
		default:
			c.WriteNull()
		}
	case name == "set" && len(args) == 3:
		if err := n.write(ctx, string(args[1]), string(args[2])); err != nil {
			c.WriteError("ERR " + err.Error())
			return
		}
		c.WriteString("OK")
	default:
		c.WriteError(fmt.Sprintf("ERR unknown command %q with %d arguments", name, len(args)-1))
	}
}
