// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// operation is an operation of Compute Engine.
type operation struct {
	name, kind, zone, target, object string
	id                               uint64
	// reads is how many more responses show it as running.
	reads int
	// adds and releases are alias IP ranges that are used until it has finished.
	adds, releases []aliasRange
	inserted, end  time.Time
	done           bool
	code, message  string
	finish         func(at time.Time)
}

// begin starts an operation. mu must be locked.
func (s *Server) begin(zone, kind, object string, d time.Duration) *operation {
	s.nextID++
	now := time.Now()
	op := &operation{
		name: fmt.Sprintf("operation-%d", s.nextID), id: s.nextID, kind: kind, zone: zone, object: object,
		inserted: now, end: now.Add(d),
	}
	s.operations = append(s.operations, op)
	return op
}

func (o *operation) fail(code, message string) { o.code, o.message = code, message }

// resource returns the operation in the form of a response.
func (o *operation) resource() any {
	if o == nil {
		return nil
	}
	progress := 0
	if o.done {
		progress = 100
	}
	all := map[string]any{
		"kind": "compute#operation", "id": strconv.FormatUint(o.id, 10), "name": o.name, "operationType": o.kind, "status": o.status(),
		"progress": progress, "zone": root + "projects/" + Project + "/zones/" + o.zone, "user": "nstance@" + Project,
		"insertTime": o.inserted.Format(time.RFC3339), "targetLink": root + path(o.zone, "instances", o.object),
	}
	if o.target != "" {
		all["targetId"] = o.target
	}
	if o.done && o.code != "" {
		all["error"] = map[string]any{"errors": []any{map[string]any{"code": o.code, "message": o.message}}}
		all["httpErrorStatusCode"], all["httpErrorMessage"] = 400, "BAD REQUEST"
	}
	return all
}

// status returns the status in a response.
func (o *operation) status() string {
	if o.done {
		return "DONE"
	}
	return "RUNNING"
}

func (o *operation) matches(c condition) bool {
	switch c.field {
	case "operationType":
		return (c.value == o.kind) != c.not
	case "status":
		return (c.value == o.status()) != c.not
	}
	return false
}

func (s *Server) getOperation(r *request) (any, error) {
	for _, op := range s.operations {
		if op.name == r.variables["operation"] && op.zone == r.variables["zone"] {
			op.reads = max(0, op.reads-1)
			return op.resource(), nil
		}
	}
	return nil, notFound(path(r.variables["zone"], "operations", r.variables["operation"]))
}

func (s *Server) listOperations(r *request) (any, error) {
	filter, err := parseFilter(r.query("filter"))
	if err != nil {
		return nil, err
	}
	var all []any
	for _, op := range s.operations {
		if op.zone == r.variables["zone"] && !slices.ContainsFunc(filter, func(c condition) bool { return !op.matches(c) }) {
			op.reads = max(0, op.reads-1)
			all = append(all, op.resource())
		}
	}
	first, end, next, err := s.page(r.URL.Query(), len(all))
	if err != nil {
		return nil, err
	}
	page := map[string]any{"kind": "compute#operationList", "id": path(r.variables["zone"], "operations")}
	if first < end {
		page["items"] = all[first:end]
	}
	if next != "" {
		page["nextPageToken"] = next
	}
	return page, nil
}
