// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditLog is the path of the API server's audit log: one line of JSON for
// every request for a change, and for every read of some users, in the order of the
// responses.
type AuditLog string

// Request is one request to the API server.
type Request struct {
	Time time.Time // when the request was received
	User string
	// Credential identifies the token: "JTI=" and the id of the token. It is "" for
	// other kinds of credentials.
	Credential string
	// Verb is get, list, watch, create, update, patch, delete or
	// deletecollection; server-side apply is a patch.
	Verb        string
	Group       string // of the API; "" is the core group
	Resource    string // plural, such as "machinepools"
	Subresource string // such as "status" or "scale", mostly ""
	Namespace   string
	Name        string // "" when the API server chose it
	Path        string // of a request for no resource, such as "/"; else ""
	Code        int    // HTTP status of the answer: 409 and 422 changed nothing
	Reason      string // why it was allowed or not; RBAC names the binding and the role
	UserAgent   string
}

// Write is a request for a change.
type Write = Request

// Action is the verb and the resource, such as "patch nodes/status".
func (r Request) Action() string {
	action := r.Verb + " " + r.Resource
	if r.Subresource != "" {
		action += "/" + r.Subresource
	}
	return action
}

var reviews = []string{"tokenreviews", "subjectaccessreviews"}

var readVerbs = []string{"get", "list", "watch"}

// Position is an offset in an audit log.
type Position int64

// End returns the present end of the log. All requests that were answered before the
// call are before it.
func (l AuditLog) End() (Position, error) {
	info, err := os.Stat(string(l))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // created with the first write
	}
	if err != nil {
		return 0, fmt.Errorf("find the end of the audit log: %w", err)
	}
	return Position(info.Size()), nil
}

// Writes returns the writes that were recorded from the given position on and that match, which
// may be nil. A review is no write: it is answered and not stored.
func (l AuditLog) Writes(from Position, match func(Write) bool) ([]Write, error) {
	return l.Requests(from, func(r Request) bool {
		return r.Path == "" && !slices.Contains(readVerbs, r.Verb) && !slices.Contains(reviews, r.Resource) && (match == nil || match(r))
	})
}

// Requests returns the requests that were recorded from the given position on and that match,
// which may be nil. A watch that was closed is recorded twice.
func (l AuditLog) Requests(from Position, match func(Request) bool) ([]Request, error) {
	file, err := os.Open(string(l))
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(max(0, int64(from)-1), io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var requests []Request
	lines := bufio.NewReader(file)
	if from > 0 {
		// At the position a line was complete, or was being written.
		if _, err := lines.ReadBytes('\n'); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
	}
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return requests, nil // an incomplete last line is being written
		}
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		if request := requestOf(&event); match == nil || match(request) {
			requests = append(requests, request)
		}
	}
}

func requestOf(event *auditv1.Event) Request {
	request := Request{
		Time:      event.RequestReceivedTimestamp.Time,
		User:      event.User.Username,
		Verb:      event.Verb,
		Reason:    event.Annotations["authorization.k8s.io/reason"],
		UserAgent: event.UserAgent,
	}
	if credentials := event.User.Extra["authentication.kubernetes.io/credential-id"]; len(credentials) > 0 {
		request.Credential = credentials[0]
	}
	if object := event.ObjectRef; object != nil {
		request.Group = object.APIGroup
		request.Resource = object.Resource
		request.Subresource = object.Subresource
		request.Namespace = object.Namespace
		request.Name = object.Name
	} else {
		request.Path, _, _ = strings.Cut(event.RequestURI, "?")
	}
	if event.ResponseStatus != nil {
		request.Code = int(event.ResponseStatus.Code)
	}
	return request
}
