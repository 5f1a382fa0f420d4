// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package ec2test emulates the API of Amazon EC2, as far as the provider uses it. It refuses
// what the documentation says that EC2 refuses, its instances take time to start and stop,
// and its reads are eventually consistent. It was written from the documentation and never
// compared with EC2.
package ec2test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"nstance.dev/operator/pkg/server/provider/providertest/pipetest"
	"nstance.dev/operator/pkg/testing/httpfault"
)

// AccessKey is the id of the accepted access key. Every secret is accepted.
const AccessKey = "AKIDNSTANCETEST"

// Zone is the zone of the subnets.
const Zone = "us-test-1a"

// Fault is a fault of the emulator. Call is the name of an action.
type Fault = httpfault.Fault

// Server is a region. Its exported fields are set before the first request.
type Server struct {
	httpfault.Faults

	// BootTime and StopTime are how long an instance is pending and shutting down.
	BootTime, StopTime time.Duration
	// AttachTime and DetachTime are how long a network interface is attached and detached.
	AttachTime, DetachTime time.Duration
	// AddressDelay is how long an instance that was launched has no address.
	AddressDelay time.Duration
	// HarmlessForce is true if a detachment with force has no effect on later attachments.
	HarmlessForce bool
	// NoCloudInit is true if the images do not run userdata.
	NoCloudInit bool
	// MetadataTags is true if the account's default is that instances have their tags in metadata.
	MetadataTags bool
	// PageSize is the largest number of instances in a response.
	PageSize int
	// Reads and Writes limit calls, nil for no limit.
	Reads, Writes *rate.Limiter
	// URL is the address of the server.
	URL string

	listener *pipetest.Listener
	model    *Model

	// mu guards the fields below.
	mu          sync.Mutex
	t           testing.TB
	subnets     map[string]*subnet
	images      map[string]Image
	types       map[string]string
	templates   map[string]string
	instances   map[string]*Instance
	tokens      map[string]launch
	made        []Made
	terminated  []string
	full        map[string]bool
	unoffered   map[string]bool
	quotas      map[string]int
	visibility  time.Duration
	throttled   time.Time
	failures    []failure
	calls       map[string]int
	permissions map[string]bool
	policy      *Policy
	requestSeq  int

	interfaces       map[string]*networkInterface
	interfaceDelay   time.Duration
	interfaceChanges int
	// spoiled has the indexes from which an interface was detached with force.
	spoiled       map[slot]bool
	forced        int
	attachmentSeq int
	pausing       func()
}

// New returns a region without subnets, with a default group of security and a key pair.
func New() *Server {
	return &Server{
		BootTime: 20 * time.Second, StopTime: 20 * time.Second, PageSize: 1000,
		AttachTime: 2 * time.Second, DetachTime: 2 * time.Second, interfaces: map[string]*networkInterface{}, spoiled: map[slot]bool{},
		subnets: map[string]*subnet{}, images: map[string]Image{}, types: map[string]string{}, templates: map[string]string{},
		instances: map[string]*Instance{}, tokens: map[string]launch{}, full: map[string]bool{}, unoffered: map[string]bool{}, quotas: map[string]int{},
		calls: map[string]int{}, permissions: map[string]bool{},
	}
}

// Start starts the server on a port of this machine. It stops with the test.
func (s *Server) Start(t testing.TB) { s.start(t) }

// StartInMemory starts the server on connections in memory, which Dial makes: in a bubble
// of synctest, time passes while they wait.
func (s *Server) StartInMemory(t testing.TB) {
	s.listener = pipetest.Listen(1)
	s.start(t)
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	s.t, s.model = t, LoadModel(t)
	server := pipetest.NewServer(s.serve, s.listener)
	server.Start()
	t.Cleanup(func() {
		s.SetFaults()
		server.CloseClientConnections()
		server.Close()
	})
	s.URL = server.URL
}

// Dial connects to a server that StartInMemory has started.
func (s *Server) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return s.listener.Dial(ctx, network, address)
}

// refusal is the response to a call that failed.
type refusal struct {
	status        int
	code, message string
}

// Error returns code and message.
func (r *refusal) Error() string { return r.code + ": " + r.message }

// refuse returns the error of a call that the client must not make.
func refuse(code, format string, values ...any) error {
	return &refusal{status: http.StatusBadRequest, code: code, message: fmt.Sprintf(format, values...)}
}

// serverError returns the error of a call that the service could not carry out.
func serverError(code, format string, values ...any) error {
	return &refusal{status: http.StatusInternalServerError, code: code, message: fmt.Sprintf(format, values...)}
}

// action is a supported call.
type action struct {
	handle func(*Server, params) (any, error)
	// write is true if the action changes something.
	write bool
	// parameters are the known parameters, with N in place of numbers.
	parameters []string
}

var filterParameters = []string{"Filter.N.Name", "Filter.N.Value.N", "MaxResults", "NextToken"}

var actions = map[string]action{
	"RunInstances":              {handle: (*Server).runInstances, write: true, parameters: runParameters},
	"TerminateInstances":        {handle: (*Server).terminateInstances, write: true, parameters: []string{"InstanceId.N"}},
	"DescribeInstances":         {handle: (*Server).describeInstances, parameters: append([]string{"InstanceId.N"}, filterParameters...)},
	"DescribeInstanceStatus":    {handle: (*Server).describeInstanceStatus, parameters: append([]string{"InstanceId.N"}, filterParameters...)},
	"DescribeSubnets":           {handle: (*Server).describeSubnets, parameters: append([]string{"SubnetId.N"}, filterParameters...)},
	"DescribeNetworkInterfaces": {handle: (*Server).describeNetworkInterfaces, parameters: append([]string{"NetworkInterfaceId.N"}, filterParameters...)},
	"AttachNetworkInterface": {
		handle: (*Server).attachNetworkInterface, write: true, parameters: []string{"NetworkInterfaceId", "InstanceId", "DeviceIndex"},
	},
	"DetachNetworkInterface": {handle: (*Server).detachNetworkInterface, write: true, parameters: []string{"AttachmentId", "Force"}},
	"CreateNetworkInterface": {
		handle: (*Server).createNetworkInterface, write: true,
		parameters: []string{"SubnetId", "ClientToken", "TagSpecification.N.ResourceType", "TagSpecification.N.Tag.N.Key", "TagSpecification.N.Tag.N.Value"},
	},
	"DeleteNetworkInterface": {handle: (*Server).deleteNetworkInterface, write: true, parameters: []string{"NetworkInterfaceId"}},
	"DescribeImages":         {handle: (*Server).describeImages, parameters: append([]string{"ImageId.N", "Owner.N"}, filterParameters...)},
	"GetConsoleOutput":       {handle: (*Server).getConsoleOutput, parameters: []string{"InstanceId", "Latest"}},
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if isMetadata(r) {
		s.serveMetadata(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		s.respond(w, "", nil, refuse("MalformedQueryString", "%v", err))
		return
	}
	name := form.Get("Action")
	var result any
	matches := func(f *Fault) bool {
		return (f.Call == "" || f.Call == name) && (!f.Writes || actions[name].write)
	}
	fault := s.Inject(r, matches, func() { result, err = s.handle(r, name, form) })
	switch {
	case fault == nil:
		s.respond(w, name, result, err)
	case fault.Status == http.StatusOK:
		s.respond(w, name, nil, nil)
	case fault.Code == "":
		http.Error(w, "the service is unavailable", fault.Status)
	default:
		s.respond(w, name, nil, &refusal{status: fault.Status, code: fault.Code, message: fault.Message})
	}
}

// handle makes a call.
func (s *Server) handle(r *http.Request, name string, form url.Values) (any, error) {
	if r.Method != http.MethodPost || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		return nil, refuse("InvalidRequest", "%s with %s", r.Method, r.Header.Get("Content-Type"))
	}
	if err := authenticate(r); err != nil {
		return nil, err
	}
	if version := form.Get("Version"); version != "2016-11-15" {
		return nil, refuse("NoSuchVersion", "The requested version (%s) is not valid", version)
	}
	action, known := actions[name]
	if !known {
		return nil, refuse("InvalidAction", "The action %s is not valid for this web service.", name)
	}
	parsed, err := action.parse(form)
	if err == nil && s.model != nil {
		err = s.model.Check(name, form)
	}
	s.pause(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		// The client must not send it, whatever a test expects of the response.
		s.t.Errorf("ec2test: %s: %v", name, err)
		return nil, err
	}
	s.calls[name]++
	s.permissions["ec2:"+name] = true
	if err := s.admit(action.write); err != nil {
		return nil, err
	}
	s.settle(time.Now())
	if err := s.authorize(name, parsed); err != nil {
		return nil, err
	}
	return action.handle(s, parsed)
}

// admit refuses a call that exceeds a limit. mu must be locked.
func (s *Server) admit(write bool) error {
	limiter := s.Reads
	if write {
		limiter = s.Writes
	}
	if time.Now().Before(s.throttled) || limiter != nil && !limiter.Allow() {
		return &refusal{status: http.StatusServiceUnavailable, code: "RequestLimitExceeded", message: "Request limit exceeded."}
	}
	return nil
}

// authenticate refuses a call without a signature of the key. It does not verify it.
func authenticate(r *http.Request) error {
	header := r.Header.Get("Authorization")
	for _, part := range []string{"AWS4-HMAC-SHA256 Credential=" + AccessKey + "/", "/ec2/aws4_request", "SignedHeaders=", "Signature="} {
		if !strings.Contains(header, part) {
			return &refusal{status: http.StatusUnauthorized, code: "AuthFailure", message: "AWS was not able to validate the provided access credentials"}
		}
	}
	return nil
}

// Calls returns how many calls there were since the last time, by action.
func (s *Server) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = map[string]int{}
	return calls
}

// Permissions returns the actions of IAM that all calls so far have needed, in order.
func (s *Server) Permissions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for permission := range s.permissions {
		all = append(all, permission)
	}
	slices.Sort(all)
	return all
}

// metadataSuffix is the suffix of the host of the metadata service of an instance.
const metadataSuffix = ".metadata.test"

// metadataToken is the token that the metadata service requires.
const metadataToken = "token-of-the-metadata-service"

// MetadataURL returns the address of the metadata service of an instance, for clients that
// connect with Dial.
func MetadataURL(instanceID string) string { return "http://" + instanceID + metadataSuffix }

// isMetadata reports whether a request is one to the metadata service of an instance.
func isMetadata(r *http.Request) bool { return strings.HasSuffix(r.Host, metadataSuffix) }

// serveMetadata responds as version 2 of the metadata service, which requires a token.
func (s *Server) serveMetadata(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/latest/api/token" && r.Method == http.MethodPut:
		if r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds") == "" {
			http.Error(w, "no time to live", http.StatusBadRequest)
			return
		}
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", r.Header.Get("X-Aws-Ec2-Metadata-Token-Ttl-Seconds"))
		_, _ = io.WriteString(w, metadataToken) // the client may have closed the connection
	case r.Header.Get("X-Aws-Ec2-Metadata-Token") != metadataToken:
		http.Error(w, "no token", http.StatusUnauthorized)
	case r.URL.Path == "/latest/meta-data/instance-id" && r.Method == http.MethodGet:
		_, _ = fmt.Fprint(w, strings.TrimSuffix(r.Host, metadataSuffix)) // as above
	default:
		http.NotFound(w, r)
	}
}
