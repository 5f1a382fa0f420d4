// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package marekvsstore acts as the kubelet of Pods of marekvs, and as their processes,
// whose load tests set. The processes place copies of data on their volumes as the store
// does (pkg/marekvs/storetest).
package marekvsstore

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"nstance.dev/operator/pkg/marekvs/storetest"
)

// Options configures a Store.
type Options struct {
	Kube kubernetes.Interface
	// Namespace is where the Pods are.
	Namespace string
	// Port is the port of the metrics, 0 for any free port.
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
	// pods has the running processes, by address.
	pods map[string]*process
	// addresses counts the addresses that Pods have got. free has the addresses of ended Pods, which
	// other Pods get, as in a Pod network.
	addresses int
	free      []string
	network   storetest.Network
	clusters  map[string]*cluster
	// failing has the images that do not start, silent the Pods whose metrics cannot be
	// read.
	failing, silent map[string]bool
	// places has the Nodes of Pods that are not on NodeName, dead the Nodes that do not respond, lost the
	// claims whose volumes are lost.
	places map[string]string
	dead   map[string]bool
	lost   map[types.UID]bool
	// page writes more lines of the metrics of each Pod; nil for none.
	page func(io.Writer)
}

// cluster is the state that the Pods of a cluster share.
type cluster struct {
	// rate is the commands per second. under is the reported number of partitions with too
	// few owners.
	rate  float64
	under int
	// counted is the time up to which the nodes have executed commands.
	counted time.Time
	// data has the volumes, which are empty before Fill.
	data   *storetest.Data
	filled bool
	// claims has the volume claim of each node, volumes the volume that the claim had when the Pod of the node ended.
	claims  map[int32]types.UID
	volumes map[int32]string
	// mostTerminating is the maximum number of Pods that were being deleted at the same
	// time. fewestCopies is the lowest number of copies of a partition on running nodes
	// since Fill.
	mostTerminating, fewestCopies int
}

// process is a run of the container of a Pod.
type process struct {
	pod, cluster string
	container    container
	uid          types.UID
	node         *storetest.Node
	peer         *storetest.Peer
	commands     float64
	nextRound    time.Time
	// scrapes is how many times the metrics of this run were read.
	scrapes int
	// stops is the time when a Pod that is being deleted ends.
	stops time.Time
}

// roundTime is the time between two rounds. copySteps is how many syncs it takes to copy a
// partition, which is longer. drainTime is how long a Pod takes to end.
const (
	roundTime = 300 * time.Millisecond
	copySteps = 5
	drainTime = time.Second
)

// Start starts a store that runs until ctx is done.
func Start(ctx context.Context, o Options) (*Store, error) {
	listener, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", o.Port))
	if err != nil {
		return nil, err
	}
	o.Port = listener.Addr().(*net.TCPAddr).Port
	s := &Store{
		Options: o, pods: map[string]*process{}, clusters: map[string]*cluster{}, failing: map[string]bool{}, silent: map[string]bool{},
		places: map[string]string{}, dead: map[string]bool{}, lost: map[types.UID]bool{},
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

// cluster returns the state of a cluster, and creates it if it is missing.
func (s *Store) cluster(name string) *cluster {
	if s.clusters[name] == nil {
		data := storetest.NewData(rand.New(rand.NewPCG(1, 2)), storetest.Copies)
		data.CopySteps = copySteps
		s.clusters[name] = &cluster{data: data, claims: map[int32]types.UID{}, volumes: map[int32]string{}}
	}
	return s.clusters[name]
}

// runningNodes returns the nodes of a cluster that run and are not being deleted, by their ordinals.
func (s *Store) runningNodes(name string) []*storetest.Node {
	var nodes []*storetest.Node
	for _, p := range s.pods {
		if p.cluster == name && p.stops.IsZero() {
			nodes = append(nodes, p.node)
		}
	}
	slices.SortFunc(nodes, func(a, b *storetest.Node) int { return int(a.Ordinal - b.Ordinal) })
	return nodes
}

// online returns the running nodes of a cluster that have joined.
func (s *Store) online(name string) []*storetest.Node {
	return slices.DeleteFunc(s.runningNodes(name), func(n *storetest.Node) bool { return !n.Active() })
}

// execute adds the commands since the last call to the nodes of a cluster that have joined, which
// share them: clients find no other node. All of them get their commands at the same time, so that
// the nodes together execute the commands of the cluster, whichever of them have joined since.
func (s *Store) execute(name string, now time.Time) {
	c := s.cluster(name)
	elapsed := now.Sub(c.counted)
	first := c.counted.IsZero()
	c.counted = now
	online := s.online(name)
	if first || len(online) == 0 {
		return
	}
	for _, p := range s.pods {
		if slices.Contains(online, p.node) {
			p.commands += c.rate / float64(len(online)) * elapsed.Seconds()
		}
	}
}

// work lets the nodes execute commands, gossip and move copies, begins the rounds that are due, and
// updates fewestCopies.
func (s *Store) work() {
	s.network.Gossip()
	now := time.Now()
	for name, c := range s.clusters {
		s.execute(name, now)
		c.data.Step(s.runningNodes(name))
	}
	for _, p := range s.pods {
		if p.stops.IsZero() && !now.Before(p.nextRound) {
			s.cluster(p.cluster).data.BeginRound(p.node, s.online(p.cluster))
			p.nextRound = now.Add(roundTime)
		}
	}
	for name, c := range s.clusters {
		if c.filled {
			c.fewestCopies = min(c.fewestCopies, c.data.Fewest(s.online(name)))
		}
	}
}

// Fill stores every partition of a cluster on the nodes that own it, as if clients had
// written data.
func (s *Store) Fill(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cluster(name)
	c.data.Fill(s.online(name))
	c.filled, c.fewestCopies = true, c.data.Factor
}

// FewestCopies returns the lowest number of copies of a partition on running nodes at any
// time since Fill.
func (s *Store) FewestCopies(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster(name).fewestCopies
}

// Copies returns the lowest number of copies of a partition on running nodes now.
func (s *Store) Copies(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster(name).data.Fewest(s.online(name))
}

// SetRate sets the commands per second of a cluster.
func (s *Store) SetRate(name string, rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.execute(name, time.Now())
	s.cluster(name).rate = rate
}

// SetUnderreplicated sets the number of partitions of a cluster with too few owners.
func (s *Store) SetUnderreplicated(name string, partitions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster(name).under = partitions
}

// SetSilent sets whether reading the metrics of a Pod fails.
func (s *Store) SetSilent(pod string, silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[pod] = silent
}

// Fail keeps containers with an image from starting.
func (s *Store) Fail(image string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing[image] = true
}

// MostTerminating returns the maximum number of Pods of a cluster that were being deleted
// at the same time since the last call.
func (s *Store) MostTerminating(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cluster(name)
	most := c.mostTerminating
	c.mostTerminating = 0
	return most
}

// serve writes the metrics of the Pod whose address the client has called.
func (s *Store) serve(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	s.mu.Lock()
	page := s.page
	s.mu.Unlock()
	if page != nil {
		page(w)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[host]
	if p == nil || s.silent[p.pod] {
		http.Error(w, "silent", http.StatusServiceUnavailable)
		return
	}
	p.scrapes++
	s.execute(p.cluster, time.Now())
	c := s.cluster(p.cluster)
	report := c.data.Report(p.node, len(s.network.Members(p.peer)), len(s.online(p.cluster)))
	report.Underreplicated = max(report.Underreplicated, int64(c.under))
	report.Write(w, map[string]int64{"get": int64(p.commands)})
}

// SetPage adds lines to the metrics of every Pod; nil ends that.
func (s *Store) SetPage(page func(io.Writer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.page = page
}

// Scrapes returns how many times the metrics of a Pod were read since its container started.
func (s *Store) Scrapes(pod string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.running(pod); p != nil {
		return p.scrapes
	}
	return 0
}

// running returns the process of a Pod that is not being deleted.
func (s *Store) running(pod string) *process {
	for _, p := range s.pods {
		if p.pod == pod && p.stops.IsZero() {
			return p
		}
	}
	return nil
}

// clustersPath is the path at which another process changes clusters.
const clustersPath = "/clusters/"

// Query parameters at clustersPath.
const (
	rateKey            = "rate"
	underreplicatedKey = "underreplicated"
)

// control sets the rate or the under-replicated partitions of a cluster.
func (s *Store) control(w http.ResponseWriter, r *http.Request) {
	cluster := r.PathValue("cluster")
	for key, set := range map[string]func(float64){
		rateKey:            func(value float64) { s.SetRate(cluster, value) },
		underreplicatedKey: func(value float64) { s.SetUnderreplicated(cluster, int(value)) },
	} {
		text := r.URL.Query().Get(key)
		if text == "" {
			continue
		}
		value, err := strconv.ParseFloat(text, 64)
		if err != nil || !(value >= 0 && value <= 1e9) {
			http.Error(w, key+" must be a number from 0 to 1000000000", http.StatusBadRequest)
			return
		}
		set(value)
	}
}

// Remote changes the store in another process.
type Remote struct{ Port int }

// SetRate sets the commands per second of a cluster.
func (r Remote) SetRate(ctx context.Context, cluster, rate string) error {
	return r.set(ctx, cluster, rateKey, rate)
}

// SetUnderreplicated sets the number of partitions of a cluster with too few owners.
func (r Remote) SetUnderreplicated(ctx context.Context, cluster, partitions string) error {
	return r.set(ctx, cluster, underreplicatedKey, partitions)
}

func (r Remote) set(ctx context.Context, cluster, key, value string) error {
	to := fmt.Sprintf("http://127.0.0.1:%d%s%s?%s", r.Port, clustersPath, url.PathEscape(cluster), url.Values{key: {value}}.Encode())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("set %s of %s: %s", key, cluster, strings.TrimSpace(string(message)))
	}
	return nil
}
