// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package gcetest emulates the API of Compute Engine, as far as the provider uses it. It
// refuses requests that Google's discovery document does not allow, and checks its own
// responses with the same document. Other rules come from Google's documentation. It was
// never compared with the service.
package gcetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/googleapi/discoverytest"
	"nstance.dev/operator/pkg/server/provider/providertest/pipetest"
	"nstance.dev/operator/pkg/testing/httpfault"
)

// Token is an access token that the server always accepts.
const Token = "test-token"

// Project, Region and Image exist on the server. All zones exist.
const (
	Project = "test-project"
	Region  = "region"
	Image   = "projects/test-project/global/images/family/node"
	// Template is an instance template, with a disk that is deleted with its machine.
	Template = "global/instanceTemplates/node"
)

// Fault is a fault of the emulator. Call is the id of a method or its end, such as
// "instances.list", and Code the reason.
type Fault = httpfault.Fault

// Server is a project. Its exported fields are set before the first request.
type Server struct {
	httpfault.Faults

	// OperationTime is how long operations take, BootTime is the time until a machine runs after
	// its operation has finished, and DeleteTime is how long deletions take.
	OperationTime, BootTime, DeleteTime time.Duration
	// VisibilityDelay is how long a machine is missing from responses after its creation.
	VisibilityDelay time.Duration
	// PageSize limits the pages of lists, in addition to the limit in a call.
	PageSize int
	// Lenient is true if a request id that was used for a request with other content gives the
	// operation of that one, and not an error.
	Lenient bool
	// NoUtilization is true if subnetworks do not show how many addresses are used.
	NoUtilization bool
	// NoCloudInit is true if the images do not run userdata.
	NoCloudInit bool
	// DrainingTime is how long lists show detached endpoints.
	DrainingTime time.Duration
	// URL is the address of the server.
	URL string

	t        testing.TB
	document *discoverytest.Document
	listener *pipetest.Listener

	// mu guards the fields below.
	mu         sync.Mutex
	subnets    map[string]*subnet
	groups     map[string]*endpointGroup
	types      map[string]bool
	vms        map[string]*machine
	operations []*operation
	requests   map[string]*pastRequest
	exhausted  map[string]bool
	rejecting  map[string]string
	// denied has the resources that may not be used, with the missing permission, and constrained
	// the constraints of the organization that hold.
	denied      map[string]string
	constrained map[string]bool
	quota       int
	nextID      uint64
	calls       map[string]int
	ever        map[string]int
	made, ran   []string
	deleted     []string
	disks       map[string]bool
	mistakes    []string
	tolerant    bool
	// delayed is how many responses show the next operation that adds an alias as running.
	delayed int
	// changes counts calls that have changed a network interface.
	changes int
	// pause is called before the next call that changes a network interface.
	pause func()
}

// New returns a project with the subnetworks "subnet" (10.0.0.0/16), "two", which has room
// for two machines, and "full", which reports room but has no free address.
func New() *Server {
	return &Server{
		OperationTime: 2 * time.Second, BootTime: 5 * time.Second, DeleteTime: 20 * time.Second, PageSize: 500,
		subnets: map[string]*subnet{
			"subnet": {cidr: "10.0.0.0/16", size: 1 << 16, secondary: map[string]string{"pods": "10.128.0.0/16"}},
			"two":    {cidr: "10.1.0.0/29", size: 8, others: 2},
			"full":   {cidr: "10.2.0.0/24", size: 1 << 8, exhausted: true},
		},
		types: map[string]bool{"e2-small": true, "e2-standard-4": true},
		vms:   map[string]*machine{}, groups: map[string]*endpointGroup{}, requests: map[string]*pastRequest{}, exhausted: map[string]bool{}, rejecting: map[string]string{}, denied: map[string]string{}, constrained: map[string]bool{},
		quota: 1 << 30, nextID: 1000, calls: map[string]int{}, ever: map[string]int{}, disks: map[string]bool{},
	}
}

// Start starts the server on a port of this machine. It stops with the test.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.start(t)
}

// StartInMemory starts the server on connections in memory, which Transport uses. In a bubble
// of synctest, time passes while they wait.
func (s *Server) StartInMemory(t testing.TB) {
	t.Helper()
	s.listener = pipetest.Listen(80)
	s.start(t)
}

func (s *Server) start(t testing.TB) {
	s.t, s.document = t, discoverytest.Load(t, discoverytest.Compute)
	server := pipetest.NewServer(s.serve, s.listener)
	server.Start()
	s.URL = server.URL
	t.Cleanup(func() {
		s.SetFaults()
		server.CloseClientConnections()
		server.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.mistakes) > 0 && !s.tolerant {
			t.Errorf("%d requests or responses were not as documented, the first: %s", len(s.mistakes), s.mistakes[0])
		}
	})
}

// Endpoint returns the address of the API.
func (s *Server) Endpoint() string { return s.URL + "/compute/v1" }

// Transport returns connections to a server that StartInMemory has started, with a token.
func (s *Server) Transport() http.RoundTripper {
	return googleapi.WithToken(&http.Transport{DialContext: s.listener.Dial}, oauth2.StaticTokenSource(&oauth2.Token{AccessToken: Token}))
}

// TolerateMistakes accepts that the client sends undocumented requests.
func (s *Server) TolerateMistakes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tolerant = true
}

// request is a call that the discovery document allows.
type request struct {
	*http.Request
	method    *discoverytest.Method
	variables map[string]string
	body      []byte
}

func (r *request) query(name string) string { return r.URL.Query().Get(name) }

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == tokenPath {
		serveToken(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, metadataPath) {
		s.serveMetadata(w, r)
		return
	}
	if r.Header.Get("Authorization") != "Bearer "+Token {
		s.respond(w, nil, nil, &failure{http.StatusUnauthorized, "authError", "Invalid Credentials"})
		return
	}
	parsed, err := s.parse(r)
	if err != nil {
		s.mistake(err)
		s.respond(w, nil, nil, invalid("%v", err))
		return
	}
	var data any
	matches := func(f *Fault) bool { return strings.HasSuffix(parsed.method.ID, f.Call) }
	fault := s.Inject(r, matches, func() {
		if parsed.method.ID == "compute.instances.updateNetworkInterface" {
			s.takePause()()
		}
		data, err = s.handle(parsed)
	})
	switch {
	case fault == nil:
		s.respond(w, parsed, data, err)
	case fault.Status == http.StatusOK:
		s.respond(w, nil, fault.Body, nil)
	default:
		s.respond(w, nil, nil, &failure{fault.Status, fault.Code, fault.Message})
	}
}

func (s *Server) mistake(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mistakes = append(s.mistakes, err.Error())
}

// parse checks a call with the discovery document.
func (s *Server) parse(r *http.Request) (*request, error) {
	method, variables, err := s.document.Find(r.Method, r.URL.EscapedPath())
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	parsed := &request{Request: r, method: method, variables: variables, body: body}
	return parsed, errors.Join(method.CheckQuery(r.URL.Query()), method.CheckBody(r, body))
}

// handle makes a call.
func (s *Server) handle(r *request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(time.Now())
	s.calls[r.method.ID]++
	s.ever[r.method.ID]++
	if r.variables["project"] != Project {
		return nil, notFound("projects/" + r.variables["project"])
	}
	handle := map[string]func(*Server, *request) (any, error){
		"compute.instances.insert":                             (*Server).insert,
		"compute.instances.get":                                (*Server).get,
		"compute.instances.list":                               (*Server).list,
		"compute.instances.delete":                             (*Server).delete,
		"compute.instances.updateNetworkInterface":             (*Server).updateNetworkInterface,
		"compute.instances.getSerialPortOutput":                (*Server).getSerialPortOutput,
		"compute.instances.simulateMaintenanceEvent":           (*Server).simulateMaintenanceEvent,
		"compute.networkEndpointGroups.attachNetworkEndpoints": (*Server).attachEndpoints,
		"compute.networkEndpointGroups.detachNetworkEndpoints": (*Server).detachEndpoints,
		"compute.networkEndpointGroups.listNetworkEndpoints":   (*Server).listEndpoints,
		"compute.zoneOperations.get":                           (*Server).getOperation,
		"compute.zoneOperations.list":                          (*Server).listOperations,
		"compute.subnetworks.get":                              (*Server).getSubnetwork,
	}[r.method.ID]
	if handle == nil {
		return nil, &failure{http.StatusNotImplemented, "notImplemented", r.method.ID + " is not implemented"}
	}
	data, err := handle(s, r)
	if err != nil {
		return nil, err
	}
	// Later calls change the data.
	encoded, err := json.Marshal(data)
	return json.RawMessage(encoded), err
}

// respond writes the response of a call.
func (s *Server) respond(w http.ResponseWriter, r *request, data any, err error) {
	status := http.StatusOK
	if err != nil {
		f, ok := errors.AsType[*failure](err)
		if !ok {
			f = &failure{http.StatusInternalServerError, "backendError", err.Error()}
		}
		status = f.status
		object := map[string]any{"code": f.status, "message": f.message}
		if f.reason != "" {
			object["errors"] = []any{map[string]any{"message": f.message, "domain": "global", "reason": f.reason}}
		}
		data = map[string]any{"error": object}
	}
	body, encodeErr := json.Marshal(data)
	if encodeErr != nil {
		s.mistake(encodeErr)
	}
	if err == nil && r != nil {
		if fields := r.query("fields"); fields != "" {
			masked, err := discoverytest.Mask(fields, body)
			if err != nil {
				s.mistake(err)
			}
			body = masked
		}
		if err := r.method.CheckResponse(body); err != nil {
			s.mistake(fmt.Errorf("response: %w", err))
		}
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have closed the connection
}

// failure is an error response.
type failure struct {
	status          int
	reason, message string
}

// Error returns the message.
func (f *failure) Error() string { return f.message }

func invalid(format string, values ...any) error {
	return &failure{http.StatusBadRequest, "invalid", fmt.Sprintf(format, values...)}
}

func notFound(resource string) error {
	return &failure{http.StatusNotFound, "notFound", fmt.Sprintf("The resource '%s' was not found", resource)}
}
