// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package marekvsstore acts as the kubelet of Pods of marekvs, and as their processes, whose
// load is set by hand. The processes place copies of data on their volumes as the store does.
package marekvsstore

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/pkg/marekvs/storetest"
)

// Options of a store.
type Options struct {
	Kube kubernetes.Interface
	// Namespace is where the Pods are.
	Namespace string
	// Port of the metrics, 0 for a free one.
	Port int
	// Scheduled leaves the Nodes of Pods to the scheduler, and gives each volume claim a
	// volume. Without it all Pods are on NodeName.
	Scheduled bool
}

// Store acts as the kubelet of every Pod of the store in a namespace, and as their processes:
// each Pod has an address of this machine, at which its metrics are served.
type Store struct {
	Options

	mu sync.Mutex
	// pods are those that run, by address.
	pods map[string]*process
	// addresses are given to Pods in their order.
	addresses int
	clusters  map[string]*cluster
	// failing are the images that do not start, and silent the Pods whose metrics cannot be
	// read.
	failing, silent map[string]bool
}

// cluster is what the Pods of one cluster have in common.
type cluster struct {
	// rate is the commands per second, and under the number of partitions that are reported
	// as having too few owners.
	rate  float64
	under int
	// data is on the volumes. It is empty before Fill.
	data   storetest.Data
	filled bool
	// mostTerminating is how many Pods were deleted at the same time, fewestCopies how many
	// nodes that ran had the partition that the fewest had, since Fill.
	mostTerminating, fewestCopies int
}

// process is one run of the container of a Pod.
type process struct {
	pod, cluster string
	container    container
	uid          types.UID
	node         *storetest.Node
	commands     float64
	last         time.Time
	nextRound    time.Time
	// scrapes is how many times the metrics of this run were read.
	scrapes int
	// stops is when a Pod that is being deleted ends.
	stops time.Time
}

// roundTime is how long the nodes take to compare their copies, drainTime how long a Pod takes
// to end.
const (
	roundTime = 300 * time.Millisecond
	drainTime = time.Second
)

// Start starts a store, which ends with ctx.
func Start(ctx context.Context, o Options) (*Store, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", o.Port))
	if err != nil {
		return nil, err
	}
	o.Port = listener.Addr().(*net.TCPAddr).Port
	s := &Store{
		Options: o, pods: map[string]*process{}, clusters: map[string]*cluster{}, failing: map[string]bool{}, silent: map[string]bool{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.serve)
	mux.HandleFunc("POST "+clustersPath+"{cluster}", s.control)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if !o.Scheduled {
		if err := s.createNode(ctx); err != nil {
			return nil, err
		}
		go wait.UntilWithContext(ctx, s.heartbeat, 10*time.Second)
	}
	go wait.UntilWithContext(ctx, s.sync, 100*time.Millisecond)
	return s, nil
}

// cluster returns the state of a cluster.
func (s *Store) cluster(name string) *cluster {
	if s.clusters[name] == nil {
		s.clusters[name] = &cluster{data: storetest.Data{}}
	}
	return s.clusters[name]
}

// online returns the nodes of a cluster that run and are not being deleted.
func (s *Store) online(name string) []*storetest.Node {
	var online []*storetest.Node
	for _, p := range s.pods {
		if p.cluster == name && p.stops.IsZero() {
			online = append(online, p.node)
		}
	}
	return online
}

// compareCopies finishes the rounds that are due, and counts the copies.
func (s *Store) compareCopies() {
	now := time.Now()
	for _, p := range s.pods {
		if p.stops.IsZero() && !now.Before(p.nextRound) {
			s.cluster(p.cluster).data.FinishRound(p.node, s.online(p.cluster))
			p.nextRound = now.Add(roundTime)
		}
	}
	for name, c := range s.clusters {
		if c.filled {
			c.fewestCopies = min(c.fewestCopies, c.data.Fewest(s.online(name)))
		}
	}
}

// Fill gives every partition of a cluster to the nodes that own it, as clients have done who
// have written data.
func (s *Store) Fill(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cluster(name)
	c.data.Fill(s.online(name))
	c.filled, c.fewestCopies = true, storetest.Copies
}

// FewestCopies returns how many nodes that ran had the partition that the fewest had, at any
// time since Fill.
func (s *Store) FewestCopies(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster(name).fewestCopies
}

// SetRate sets the commands per second of a cluster.
func (s *Store) SetRate(name string, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster(name).rate = rate
}

// SetUnderreplicated sets the number of partitions of a cluster with too few owners.
func (s *Store) SetUnderreplicated(name string, partitions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster(name).under = partitions
}

// SetSilent makes the metrics of a Pod fail, or not.
func (s *Store) SetSilent(pod string, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[pod] = silent
}

// Fail makes an image one that does not start.
func (s *Store) Fail(image string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing[image] = true
}

// MostTerminating returns how many Pods of a cluster were being deleted at the same time,
// since it was called last.
func (s *Store) MostTerminating(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cluster(name)
	most := c.mostTerminating
	c.mostTerminating = 0
	return most
}
