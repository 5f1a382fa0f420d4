// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAuditLogLeavesOutAHalfWrittenLine(t *testing.T) {
	const whole = `{"verb":"patch","user":{"username":"alice"},"objectRef":{"resource":"nodes","subresource":"status","name":"n"},"responseStatus":{"code":200}}` + "\n"
	log := AuditLog(filepath.Join(t.TempDir(), "audit.log"))
	require.NoError(t, os.WriteFile(string(log), []byte(whole+whole+`{"verb":"pa`), 0o600))
	want := Write{User: "alice", Verb: "patch", Resource: "nodes", Subresource: "status", Name: "n", Code: 200}
	// The first line is complete, or was being written when its end was read.
	for _, from := range []int{len(whole), len(whole) - 1, len(whole) / 2, 1} {
		writes, err := log.Writes(Position(from), nil)
		require.NoError(t, err)
		if len(writes) != 1 || writes[0] != want {
			t.Errorf("read %+v from %d, want only %+v", writes, from, want)
		}
	}
}

func TestAuditLogDistinguishesReadsFromWrites(t *testing.T) {
	const lines = `{"verb":"get","user":{"username":"reader","extra":{"authentication.kubernetes.io/credential-id":["JTI=1"]}},"requestURI":"/?timeout=5s",` +
		`"responseStatus":{"code":200},"annotations":{"authorization.k8s.io/reason":"RBAC: allowed"}}` + "\n" +
		`{"verb":"list","user":{"username":"reader"},"requestURI":"/api/v1/pods","objectRef":{"resource":"pods"},"responseStatus":{"code":403}}` + "\n" +
		`{"verb":"create","user":{"username":"reader"},"objectRef":{"resource":"pods","subresource":"eviction"},"responseStatus":{"code":201}}` + "\n"
	log := AuditLog(filepath.Join(t.TempDir(), "audit.log"))
	require.NoError(t, os.WriteFile(string(log), []byte(lines), 0o600))
	requests, err := log.Requests(0, nil)
	require.NoError(t, err)
	want := []Request{
		{User: "reader", Credential: "JTI=1", Verb: "get", Path: "/", Code: 200, Reason: "RBAC: allowed"},
		{User: "reader", Verb: "list", Resource: "pods", Code: 403},
		{User: "reader", Verb: "create", Resource: "pods", Subresource: "eviction", Code: 201},
	}
	if !slices.Equal(requests, want) {
		t.Errorf("read %+v, want %+v", requests, want)
	}
	writes, err := log.Writes(0, nil)
	if err != nil || !slices.Equal(writes, want[2:]) {
		t.Errorf("read the writes %+v (%v), want %+v", writes, err, want[2:])
	}
}

func TestMissingAuditLogIsEmpty(t *testing.T) {
	end, err := AuditLog(filepath.Join(t.TempDir(), "audit.log")).End()
	if end != 0 || err != nil {
		t.Errorf("its end is %d (%v), want 0", end, err)
	}
}
