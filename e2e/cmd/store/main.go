// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command store stands in for marekvs in the tests on real nodes. It is a small replicated
// store with the ports, paths, variables and metrics of marekvs: each key has copies on
// several nodes, which they keep complete when the nodes change. Unlike marekvs, it sends
// all keys in each round, and the last write wins.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// version is the version of the image. The version "broken" does not start.
var version = "1"

// Ports of marekvs.
const (
	respPort    = 6379
	meshPort    = 7373
	gossipPort  = 7946
	metricsPort = 9121
)

const (
	// leaveTime is how long a leaving node still serves clients that have not noticed.
	leaveTime = 2 * time.Second
	// handoverTime limits how long it then waits until other nodes have its copies.
	handoverTime = 7 * time.Second
)

func main() {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if version == "broken" {
		return errors.New("open the volume: it has a format that this version does not know")
	}
	n, err := newNode()
	if err != nil {
		return err
	}
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	serving, cancel := context.WithCancel(context.WithoutCancel(terminated))
	defer cancel()
	group, ctx := errgroup.WithContext(serving)
	group.Go(func() error { return n.members.run(ctx) })
	group.Go(func() error { return n.keepCopies(ctx) })
	group.Go(func() error { return n.serveRESP(ctx) })
	group.Go(func() error { return serveHTTP(ctx, meshPort, n.mesh()) })
	group.Go(func() error { return serveHTTP(ctx, metricsPort, n.probes()) })
	group.Go(func() error {
		defer cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-terminated.Done():
			return n.stop(ctx)
		}
	})
	log.Printf("node %s, version %s, address %s", n.members.self.Name, version, n.members.self.Address)
	return group.Wait()
}

// node is the node of the store in this process.
type node struct {
	volume  *volume
	members *members
	// replicas is the number of copies of each key.
	replicas int
	rounds   counter
	// repaired counts the entries that rounds of other nodes have brought.
	repaired counter
	commands map[string]*counter
	peers    http.Client
}

func newNode() (*node, error) {
	replicas, err := strconv.Atoi(os.Getenv("MAREKVS_REPLICAS_N"))
	if err != nil {
		return nil, fmt.Errorf("MAREKVS_REPLICAS_N: %w", err)
	}
	seed, port, err := net.SplitHostPort(os.Getenv("MAREKVS_SEEDS"))
	if err != nil || port != strconv.Itoa(gossipPort) {
		return nil, fmt.Errorf("MAREKVS_SEEDS is %q, want a name and port %d", os.Getenv("MAREKVS_SEEDS"), gossipPort)
	}
	volume, err := openVolume(os.Getenv("MAREKVS_DATA_DIR"))
	if err != nil {
		return nil, fmt.Errorf("open the volume: %w", err)
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	address, err := ownAddress()
	if err != nil {
		return nil, err
	}
	return &node{
		volume: volume, members: newMembers(member{Cluster: os.Getenv("MAREKVS_CLUSTER"), Name: name, Address: address}, seed), replicas: replicas,
		commands: map[string]*counter{"get": {}, "set": {}}, peers: http.Client{Timeout: 2 * time.Second},
	}, nil
}

// ownAddress returns the address of the Pod.
func ownAddress() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && !network.IP.IsLoopback() && network.IP.To4() != nil {
			return network.IP.String(), nil
		}
	}
	return "", fmt.Errorf("no address among %v", addresses)
}

// stop leaves, and returns when other nodes have the copies of this node, or after
// leaveTime and handoverTime.
func (n *node) stop(ctx context.Context) error {
	drained := !n.leave()
	limit := time.After(leaveTime + handoverTime)
	<-time.After(leaveTime)
	for {
		done, failed := n.rounds.value(), make(chan struct{})
		go func() {
			defer close(failed)
			if err := n.round(ctx); err != nil {
				log.Printf("handing over: %v", err)
			}
		}()
		select {
		case <-limit:
			return errors.New("not every copy was handed over")
		case <-failed:
		}
		if n.rounds.value() > done {
			log.Print("handed over")
			return reportEnd(drained)
		}
	}
}

// leave makes other nodes the owners of the partitions of this node. It returns false if
// the node was already leaving.
func (n *node) leave() bool {
	left := n.members.leave()
	if left {
		log.Print("leaving")
	}
	return left
}

// reportEnd writes to the termination message of the Pod how this node has ended
// (https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/).
func reportEnd(drained bool) error {
	message := "not drained, handed over"
	if drained {
		message = "drained, handed over"
	}
	return os.WriteFile(corev1.TerminationMessagePathDefault, []byte(message), 0o600)
}

// serveHTTP serves at a port until ctx is done.
func serveHTTP(ctx context.Context, port int, handler http.Handler) error {
	server := &http.Server{Addr: fmt.Sprintf(":%d", port), Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

type counter struct{ n atomic.Int64 }

func (c *counter) add()         { c.n.Add(1) }
func (c *counter) value() int64 { return c.n.Load() }

// probes serves the kubelet and the operator.
func (n *node) probes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /alive", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if !n.members.ready() {
			http.Error(w, "joining", http.StatusServiceUnavailable)
		}
	})
	// The preStop hook. The kubelet sends SIGTERM when it has the response
	// (https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/).
	mux.HandleFunc("GET /drain", func(http.ResponseWriter, *http.Request) { n.leave() })
	mux.HandleFunc("GET /metrics", n.serveMetrics)
	return mux
}

func (n *node) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	active := len(n.members.active())
	under, joining := 0, 0
	if active < n.replicas {
		under = partitions
	}
	if n.rounds.value() == 0 {
		joining = partitions
	}
	used, err := n.volume.size()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for name, count := range n.commands {
		fmt.Fprintf(w, "marekvs_commands_total{cmd=%q} %d\n", name, count.value())
	}
	for _, metric := range []struct {
		name  string
		value int64
	}{
		{"marekvs_cluster_members", int64(active)},
		{"marekvs_cluster_effective_rf_min", int64(min(active, n.replicas))},
		{"marekvs_cluster_underreplicated_partitions", int64(under)},
		{"marekvs_join_gate_pending_pids", int64(joining)},
		{"marekvs_ae_rounds_total", n.rounds.value()},
		{"marekvs_ae_repair_ops_total", n.repaired.value()},
		{"marekvs_disk_total_bytes", volumeSize},
		{"marekvs_disk_avail_bytes", volumeSize - used},
		{"marekvs_disk_write_stopped", 0},
	} {
		fmt.Fprintf(w, "%s %d\n", metric.name, metric.value)
	}
}
