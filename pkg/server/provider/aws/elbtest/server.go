// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package elbtest emulates the API of Elastic Load Balancing, for the targets of target
// groups. It refuses what the documentation says that the service refuses. It was written
// from the documentation and never compared with the service.
package elbtest

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"nstance.dev/operator/pkg/server/provider/aws/ec2test"
	"nstance.dev/operator/pkg/testing/httpfault"
)

const (
	// version is the version of the API, and namespace the XML namespace of its responses.
	version   = "2015-12-01"
	namespace = "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"
	// maxTargets is how many targets a call may have, which is not documented.
	maxTargets = 200
)

// Fault is a fault of the emulator. Call is the name of an action.
type Fault = httpfault.Fault

// Throttled returns a fault that throttles a number of calls.
func Throttled(times int) *Fault {
	return &Fault{Times: times, Before: true, Status: http.StatusBadRequest, Code: "Throttling", Message: "Rate exceeded"}
}

// Server has target groups. Time does not pass there: EndDelays ends deregistrations.
type Server struct {
	httpfault.Faults

	// URL is the address of the server.
	URL string

	model *ec2test.Model

	// mu guards the fields below.
	mu        sync.Mutex
	t         testing.TB
	groups    map[string]*group
	instances map[string]bool
	calls     []string
	sequence  int
}

// Start starts a server without target groups. It stops with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	model, err := ec2test.ReadModel("elbv2/"+version, "")
	if err != nil {
		t.Errorf("read the model of Elastic Load Balancing: %v", err)
	}
	s := &Server{t: t, model: model, groups: map[string]*group{}, instances: map[string]bool{}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// refusal is the response to a call that failed.
type refusal struct {
	status        int
	code, message string
}

// Error returns code and message.
func (r *refusal) Error() string { return r.code + ": " + r.message }

// refuse returns the response to a call that is wrong.
func refuse(code, format string, values ...any) error {
	return &refusal{http.StatusBadRequest, code, fmt.Sprintf(format, values...)}
}

// actions are the supported calls.
var actions = map[string]func(*Server, *group, []target) (any, error){
	"RegisterTargets":      (*Server).registerTargets,
	"DeregisterTargets":    (*Server).deregisterTargets,
	"DescribeTargetHealth": (*Server).describeTargetHealth,
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
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
	matches := func(f *Fault) bool { return f.Call == "" || f.Call == name }
	fault := s.Inject(r, matches, func() { result, err = s.handle(r, name, form) })
	if fault != nil {
		result, err = nil, &refusal{fault.Status, fault.Code, fault.Message}
	}
	s.respond(w, name, result, err)
}

// handle makes a call.
func (s *Server) handle(r *http.Request, name string, form url.Values) (any, error) {
	if r.Method != http.MethodPost || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		return nil, refuse("InvalidRequest", "%s with %s", r.Method, r.Header.Get("Content-Type"))
	}
	header := r.Header.Get("Authorization")
	for _, part := range []string{"AWS4-HMAC-SHA256 Credential=" + ec2test.AccessKey + "/", "/elasticloadbalancing/aws4_request", "SignedHeaders=", "Signature="} {
		if !strings.Contains(header, part) {
			return nil, &refusal{http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid."}
		}
	}
	action, known := actions[name]
	if !known || form.Get("Version") != version {
		return nil, refuse("InvalidAction", "Could not find operation %s for version %s", name, form.Get("Version"))
	}
	targets, err := parse(form)
	if err == nil && s.model != nil {
		err = s.model.Check(name, form)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
	case name != "DescribeTargetHealth" && len(targets) == 0:
		err = refuse("ValidationError", "1 validation error detected: Value null at 'targets' failed to satisfy constraint: Member must not be null")
	case len(targets) > maxTargets:
		err = refuse("ValidationError", "Up to %d targets can be specified", maxTargets)
	}
	if err != nil {
		// The client must not send it, whatever a test expects of the response.
		s.t.Errorf("elbtest: %s: %v", name, err)
		return nil, err
	}
	s.calls = append(s.calls, name)
	arn := form.Get("TargetGroupArn")
	group, found := s.groups[arn]
	if !found {
		return nil, refuse("TargetGroupNotFound", "Target groups '%s' not found", arn)
	}
	return action(s, group, targets)
}

var parameters = regexp.MustCompile(`^(Action|Version|TargetGroupArn|Targets\.member\.[1-9][0-9]*\.(Id|Port))$`)

// parse returns the targets of a call. It refuses parameters that the server does not know.
func parse(form url.Values) ([]target, error) {
	for name, values := range form {
		if !parameters.MatchString(name) || len(values) != 1 {
			return nil, refuse("ValidationError", "%s=%v is not recognized", name, values)
		}
	}
	var targets []target
	for n := 1; ; n++ {
		prefix := fmt.Sprintf("Targets.member.%d.", n)
		id := form.Get(prefix + "Id")
		if id == "" {
			return targets, nil
		}
		parsed := target{id: id}
		if text := form.Get(prefix + "Port"); text != "" {
			port, err := strconv.Atoi(text)
			if err != nil || port < 1 || port > 65535 {
				return nil, refuse("ValidationError", "Port '%s' is not valid", text)
			}
			parsed.port = port
		}
		targets = append(targets, parsed)
	}
}

// respond writes the response of a call.
func (s *Server) respond(w http.ResponseWriter, name string, result any, err error) {
	s.mu.Lock()
	s.sequence++
	requestID := fmt.Sprintf("00000000-0000-0000-0000-%012d", s.sequence)
	s.mu.Unlock()
	status := http.StatusOK
	var document any
	if err != nil {
		refused, ok := errors.AsType[*refusal](err)
		if !ok {
			refused = &refusal{http.StatusInternalServerError, "InternalFailure", err.Error()}
		}
		status = refused.status
		document = errorResponse{XMLName: xml.Name{Space: namespace, Local: "ErrorResponse"}, Type: "Sender", Code: refused.code, Message: refused.message, RequestID: requestID}
	} else {
		data, err := xml.Marshal(result)
		if err != nil {
			panic(err)
		}
		document = response{
			XMLName: xml.Name{Space: namespace, Local: name + "Response"},
			Content: string(data) + "<ResponseMetadata><RequestId>" + requestID + "</RequestId></ResponseMetadata>",
		}
	}
	data, err := xml.Marshal(document)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may have closed the connection
}

type response struct {
	XMLName xml.Name
	Content string `xml:",innerxml"`
}

type errorResponse struct {
	XMLName   xml.Name
	Type      string `xml:"Error>Type"`
	Code      string `xml:"Error>Code"`
	Message   string `xml:"Error>Message"`
	RequestID string `xml:"RequestId"`
}

// Calls returns the actions of the calls since the last time, in order.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// Permissions returns the actions of IAM that the calls since the last time have needed.
func (s *Server) Permissions() []string {
	names := map[string]bool{}
	for _, name := range s.Calls() {
		names["elasticloadbalancing:"+name] = true
	}
	return slices.Sorted(maps.Keys(names))
}
