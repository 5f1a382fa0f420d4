// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAuditLogLeavesOutAHalfWrittenLine(t *testing.T) {
	const whole = `{"verb":"patch","user":{"username":"somebody"},"objectRef":{"resource":"nodes","subresource":"status","name":"n"},"responseStatus":{"code":200}}` + "\n"
	log := AuditLog(filepath.Join(t.TempDir(), "audit.log"))
	if err := os.WriteFile(string(log), []byte(whole+whole+`{"verb":"pa`), 0o600); err != nil {
		t.Fatal(err)
	}
	writes, err := log.Writes(Position(len(whole)), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Write{User: "somebody", Verb: "patch", Resource: "nodes", Subresource: "status", Name: "n", Code: 200}
	if len(writes) != 1 || writes[0] != want {
		t.Errorf("read %+v, want only %+v", writes, want)
	}
}

func TestAuditLogThatIsNotThereYetIsEmpty(t *testing.T) {
	end, err := AuditLog(filepath.Join(t.TempDir(), "audit.log")).End()
	if end != 0 || err != nil {
		t.Errorf("its end is %d (%v), want 0", end, err)
	}
}
