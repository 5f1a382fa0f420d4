// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"log"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// gossipInterval is the time between two announcements of a node. silentTime is how
	// long a node without announcements stays a member.
	gossipInterval, silentTime = 200 * time.Millisecond, 2 * time.Second
	// resolveInterval is the time between two lookups of the addresses of the nodes.
	// joinTime is how long a node listens before it is ready.
	resolveInterval, joinTime = 500 * time.Millisecond, time.Second
)

// member is a node as other nodes see it.
type member struct {
	// Cluster is its gossip cluster. Nodes of other clusters are ignored.
	Cluster, Name, Address string
	// Leaving is true for a node that hands over its copies.
	Leaving bool
}

// members tracks the nodes of the cluster. Each node sends datagrams to all addresses of
// the seed.
type members struct {
	seed string

	mu   sync.Mutex
	self member
	// heard has the other nodes by name, with the time of the last datagram.
	heard map[string]heard
	// joined is the time when this node found its own address among the addresses of the
	// seed.
	joined time.Time
}

type heard struct {
	member
	at time.Time
}

func newMembers(self member, seed string) *members {
	return &members{self: self, seed: seed, heard: map[string]heard{}}
}

// run follows the other nodes until ctx is done.
func (m *members) run(ctx context.Context) error {
	connection, err := net.ListenUDP("udp4", &net.UDPAddr{Port: gossipPort})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	go m.send(ctx, connection)
	buffer := make([]byte, 1024)
	for {
		length, err := connection.Read(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var from member
		if err := json.Unmarshal(buffer[:length], &from); err == nil {
			m.hear(from)
		}
	}
}

func (m *members) hear(from member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if from.Cluster == m.self.Cluster && from.Name != m.self.Name {
		m.heard[from.Name] = heard{from, time.Now()}
	}
}

// send announces this node to the others.
func (m *members) send(ctx context.Context, connection *net.UDPConn) {
	tick := time.NewTicker(gossipInterval)
	defer tick.Stop()
	var addresses []net.IP
	var resolved time.Time
	for ctx.Err() == nil {
		if time.Since(resolved) > resolveInterval {
			if found, err := net.DefaultResolver.LookupIP(ctx, "ip4", m.seed); err == nil {
				addresses, resolved = found, time.Now()
				m.join(found)
			} else {
				log.Printf("look up %s: %v", m.seed, err)
			}
		}
		m.mu.Lock()
		message, _ := json.Marshal(m.self)
		m.mu.Unlock()
		for _, address := range addresses {
			_, _ = connection.WriteToUDP(message, &net.UDPAddr{IP: address, Port: gossipPort})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// join makes this node a member when the seed has its address.
func (m *members) join(addresses []net.IP) {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := func(address net.IP) bool { return address.String() == m.self.Address }
	if m.joined.IsZero() && slices.ContainsFunc(addresses, own) {
		m.joined = time.Now()
	}
}

// leave marks this node as leaving, and returns false if it was already leaving.
func (m *members) leave() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := !m.self.Leaving
	m.self.Leaving = true
	return changed
}

// ready reports whether this node has joined and has listened for joinTime.
func (m *members) ready() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.joined.IsZero() && time.Since(m.joined) >= joinTime
}

// active returns the nodes that are not leaving, by name.
func (m *members) active() []member {
	return m.where(func(n member) bool { return !n.Leaving })
}

// others returns all other nodes that are heard, by name.
func (m *members) others() []member {
	return m.where(func(n member) bool { return n.Name != m.self.Name })
}

func (m *members) where(wanted func(member) bool) []member {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := []member{m.self}
	for _, h := range m.heard {
		if time.Since(h.at) < silentTime {
			all = append(all, h.member)
		}
	}
	all = slices.DeleteFunc(all, func(n member) bool { return !wanted(n) })
	slices.SortFunc(all, func(a, b member) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
