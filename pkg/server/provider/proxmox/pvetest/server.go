// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package pvetest emulates the API of a Proxmox VE cluster, as far as the provider uses it.
// It refuses unknown parameters: its schema is a part of the published schema, typed by hand.
// Where make test-moto has installed the published schema, each request and each response is
// compared with it, and each error with the messages in the sources. Its tasks take time, and its
// lists are as late as in a cluster. It was written from the documentation and never compared with a
// cluster.
package pvetest

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/provider/providertest/pipetest"
	"nstance.dev/operator/pkg/testing/httpfault"
)

// Token is the API token that the server accepts.
const Token = "nstance@pve!test=01234567-89ab-cdef-0123-456789abcdef"

// tokenUser is the part of it that tasks show.
const tokenUser = "nstance@pve!test"

// Fault is a fault of the emulator. Call is the end of the path.
type Fault = httpfault.Fault

// Server is a cluster. Its exported fields are set before the first request.
type Server struct {
	httpfault.Faults

	// CloneTime and TaskTime are how long tasks take that clone, and others.
	CloneTime, TaskTime time.Duration
	// ReportInterval is the time between two reports of each node, which has the names and
	// the status of its virtual machines.
	ReportInterval time.Duration
	// SyncDelay is how long a node may take to know a change on another node.
	SyncDelay time.Duration
	// Idle is true if virtual machines use no memory that the list shows.
	Idle bool
	// Standalone is true of a node that is no member of a cluster.
	Standalone bool
	// URL is the address of the server, and Fingerprint the SHA-256 of its certificate.
	URL, Fingerprint string

	listener *pipetest.Listener
	// published are the versions of the published schema, and texts the messages in the sources, if
	// they are on this machine.
	published []*Published
	texts     Texts

	// mu guards the fields below.
	mu         sync.Mutex
	nodes      map[string]*node
	storages   map[string]*storage
	vms        map[int]*vm
	tasks      []*task
	taskNumber int
	privileges map[string]map[string]bool
	// here has the privileges that do not propagate: the path, a space and the name.
	here      map[string]bool
	tagAccess string
	noQuorum  bool
	calls     []string
	made      []Machine
	started   []Machine
	conflicts int
	// mistakes are requests and responses that the published schema does not allow, and messages that
	// the sources do not have.
	mistakes []string
}

// New returns a cluster with the given nodes, the shared storage "ceph", the storages
// "local" of each node, for disks and ISO images, and the bridge "vmbr0".
func New(nodes ...string) *Server {
	s := &Server{
		CloneTime: 2 * time.Second, TaskTime: 500 * time.Millisecond, ReportInterval: 10 * time.Second, SyncDelay: time.Second,
		nodes: map[string]*node{}, storages: map[string]*storage{}, vms: map[int]*vm{}, privileges: allPrivileges(), here: map[string]bool{},
	}
	for _, name := range nodes {
		s.nodes[name] = &node{online: true, memory: 64 << 30, bridges: map[string]bool{"vmbr0": true}}
		s.storages[name+"/local"] = newStorage("local", false, name)
	}
	s.storages["ceph"] = newStorage("ceph", true, "")
	return s
}

// Start starts the server with TLS on a port of this machine. It stops with the test.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.start(t)
}

// StartInMemory starts the server with TLS on connections in memory, which Dial makes: in a
// bubble of synctest, time passes while they wait.
func (s *Server) StartInMemory(t testing.TB) {
	t.Helper()
	s.listener = pipetest.Listen(8006)
	s.start(t)
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	all, err := published()
	if err != nil {
		t.Errorf("read the published schema of Proxmox VE: %v", err)
	}
	s.published = all
	if s.texts, err = texts(); err != nil {
		t.Errorf("read the messages of Proxmox VE: %v", err)
	}
	server := pipetest.NewServer(s.serve, s.listener)
	server.StartTLS()
	t.Cleanup(func() {
		s.SetFaults()
		server.CloseClientConnections()
		server.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.mistakes) > 0 {
			t.Errorf("%d requests, responses or messages are not as Proxmox VE has them, the first: %s", len(s.mistakes), s.mistakes[0])
		}
	})
	s.URL, s.Fingerprint = server.URL, FingerprintOf(server.Certificate())
}

// Dial connects to a server that StartInMemory has started.
func (s *Server) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return s.listener.Dial(ctx, network, address)
}

// FingerprintOf returns the SHA-256 of a certificate.
func FingerprintOf(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

// failure is an error response.
type failure struct {
	status  int
	message string
	// parameters are the mistakes by parameter.
	parameters map[string]string
}

// Error returns the message.
func (f *failure) Error() string { return f.message }

// failed returns the error of an operation that was rejected.
func failed(format string, values ...any) error {
	return &failure{status: http.StatusInternalServerError, message: fmt.Sprintf(format, values...)}
}

// noConnection is the status of a call that could not be forwarded to a node
// (https://metacpan.org/pod/AnyEvent::HTTP).
const noConnection = 595

// request is a call that matches the schema.
type request struct {
	*http.Request
	// path has the variables in the path, and form the parameters.
	path, form map[string]string
	file       []byte
	fileName   string
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "PVEAPIToken="+Token {
		respond(w, nil, &failure{status: http.StatusUnauthorized, message: "invalid token value!"})
		return
	}
	var data any
	var err error
	matches := func(f *Fault) bool {
		return (f.Verb == "" || f.Verb == r.Method) && strings.HasSuffix(r.URL.EscapedPath(), f.Call)
	}
	fault := s.Inject(r, matches, func() { data, err = s.handle(r) })
	switch {
	case fault == nil:
		respond(w, data, err)
	case fault.Status == http.StatusOK:
		respond(w, []any{}, nil)
	default:
		respond(w, nil, &failure{status: fault.Status, message: fault.Message})
	}
}

// handle makes a call.
func (s *Server) handle(r *http.Request) (any, error) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api2/json/")
	method, variables, err := find(r.Method, path)
	if err != nil {
		return nil, err
	}
	parsed, err := parse(r, method, variables)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	s.calls = append(s.calls, r.Method+" "+method.path)
	if name, has := variables["node"]; has {
		switch node := s.nodes[name]; {
		case node == nil:
			return nil, failed("no such cluster node '%s'", name)
		case !node.online:
			return nil, &failure{status: noConnection, message: "No route to host"}
		}
	}
	if r.Method != http.MethodGet && s.noQuorum {
		// https://git.proxmox.com/?p=pve-cluster.git;a=blob;f=src/PVE/Cluster.pm, check_cfs_quorum.
		return nil, failed("cluster not ready - no quorum?")
	}
	if err := s.authorize(method, parsed); err != nil {
		return nil, err
	}
	s.compare(func(p *Published) error { return p.CheckRequest(r.Method, method.path, parsed.parameters()) })
	data, err := method.handle(s, parsed)
	if err == nil {
		s.compare(func(p *Published) error { return p.CheckResponse(r.Method, method.path, data) })
	} else {
		s.compareText(method, err)
	}
	return data, err
}

// compare notes what the published schema does not allow. mu must be locked.
func (s *Server) compare(check func(*Published) error) {
	for _, schema := range s.published {
		if err := check(schema); err != nil {
			s.mistakes = append(s.mistakes, err.Error())
		}
	}
}

// respond writes the response of a call.
func respond(w http.ResponseWriter, data any, err error) {
	body := map[string]any{"data": data}
	status := http.StatusOK
	if err != nil {
		f, ok := errors.AsType[*failure](err)
		if !ok {
			f = &failure{status: http.StatusInternalServerError, message: err.Error()}
		}
		status, body["message"] = f.status, f.message+"\n"
		if len(f.parameters) > 0 {
			body["errors"] = f.parameters
		}
	}
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have closed the connection
}

// Calls returns how many calls there were since the last time, by method and path of the
// schema.
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := map[string]int{}
	for _, call := range s.calls {
		count[call]++
	}
	s.calls = nil
	return count
}
