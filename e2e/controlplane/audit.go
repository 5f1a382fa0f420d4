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
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// AuditLog is the path of the API server's audit log: one line of JSON for
// every request that asked for a write, in the order they were answered.
type AuditLog string

// Write is one request to change something.
type Write struct {
	Time time.Time // when the request was received
	User string
	// Verb is create, update, patch, delete or deletecollection; server-side
	// apply is a patch.
	Verb        string
	Group       string // of the API; "" is the core group
	Resource    string // plural, such as "machinepools"
	Subresource string // such as "status" or "scale", mostly ""
	Namespace   string
	Name        string // "" when the API server chose it
	Code        int    // HTTP status of the answer: 409 and 422 changed nothing
	UserAgent   string
}

// Position is a place in an audit log.
type Position int64

// End returns the present end of the log. Everything that was answered before
// the call lies before it.
func (l AuditLog) End() (Position, error) {
	info, err := os.Stat(string(l))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // made with the first write
	}
	if err != nil {
		return 0, fmt.Errorf("finding the end of the audit log: %w", err)
	}
	return Position(info.Size()), nil
}

// Writes returns the writes that were recorded from the given position on and
// that match, which may be nil for all of them.
func (l AuditLog) Writes(from Position, match func(Write) bool) ([]Write, error) {
	file, err := os.Open(string(l))
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(int64(from), io.SeekStart); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	var writes []Write
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return writes, nil // a last line without its end is being written
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if write := writeOf(&event); match == nil || match(write) {
			writes = append(writes, write)
		}
	}
}

func writeOf(event *auditv1.Event) Write {
	write := Write{
		Time:      event.RequestReceivedTimestamp.Time,
		User:      event.User.Username,
		Verb:      event.Verb,
		UserAgent: event.UserAgent,
	}
	if object := event.ObjectRef; object != nil {
		write.Group = object.APIGroup
		write.Resource = object.Resource
		write.Subresource = object.Subresource
		write.Namespace = object.Namespace
		write.Name = object.Name
	}
	if event.ResponseStatus != nil {
		write.Code = int(event.ResponseStatus.Code)
	}
	return write
}
