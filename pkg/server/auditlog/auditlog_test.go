// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package auditlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

// full is an entry with all fields but At.
var full = auditlog.Entry{
	Action: audit.IssueCertificate, Name: "1a", Tenant: "default", Client: "prod", Instance: "knd1", ExpiresAt: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC),
	Nonce: "operator-nonce/ab.pem", Reason: "registration", Writer: "admin", RequestID: "id",
}

func newStorage(t *testing.T) storage.Store {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	return store
}

// An entry is found under its day, with every field, and in the log.
func TestWrite(t *testing.T) {
	store := newStorage(t)
	synctest.Test(t, func(t *testing.T) {
		log := audittest.NewLog()
		// Two entries of the same time.
		for range 2 {
			require.NoError(t, auditlog.Log{Store: store, Scope: "us-west-2a"}.Write(log.Context(t.Context()), full))
		}
		const line = "Audit: issue certificate instance=knd1 kind=Certificate name=1a to=valid until 2026-06-01T12:00:00Z writer=admin reason=registration result=accepted"
		log.Expect(t, line, line)
		infos, err := store.List(t.Context(), "audit-log/us-west-2a/2000-01-01/000000.000000Z-")
		require.NoError(t, err)
		require.Len(t, infos, 2)
		object, err := store.Get(t.Context(), infos[0].Key)
		require.NoError(t, err)
		assert.JSONEq(t, `{
			"at": "2000-01-01T00:00:00Z", "action": "Audit: issue certificate", "name": "1a", "tenant": "default", "client": "prod", "instance": "knd1",
			"expires_at": "2026-06-01T12:00:00Z", "nonce": "operator-nonce/ab.pem", "reason": "registration", "writer": "admin", "request_id": "id"
		}`, string(object.Data))
		var fields map[string]any
		require.NoError(t, json.Unmarshal(object.Data, &fields))
		assert.Len(t, fields, reflect.TypeFor[auditlog.Entry]().NumField(), "the entry of this test lacks a field")
	})
}

// The caller issues nothing without an entry, and so the log must not claim that it has.
func TestWriteFails(t *testing.T) {
	failure := errors.New("no space left on device")
	store := storagetest.Intercepted{Store: newStorage(t), Intercept: func(context.Context, storagetest.Call, func(context.Context) error) error { return failure }}
	log := audittest.NewLog()
	err := auditlog.Log{Store: store}.Write(log.Context(t.Context()), full)
	require.ErrorIs(t, err, failure)
	require.ErrorContains(t, err, "store an entry of the audit log (Audit: issue certificate)")
	log.Expect(t)
}

// A client has a number of entries at once, and then one at a time. Other clients are not affected.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var limits auditlog.Limits
		for range 30 {
			require.NoError(t, limits.Check("a"))
		}
		require.ErrorIs(t, limits.Check("a"), auditlog.ErrTooMany)
		require.NoError(t, limits.Check("b"))
		<-time.After(10 * time.Second)
		require.NoError(t, limits.Check("a"))
		require.ErrorIs(t, limits.Check("a"), auditlog.ErrTooMany)
		// Many clients do not make room for a client that has reached its limit.
		for n := range 5000 {
			require.NoError(t, limits.Check(fmt.Sprint(n)))
		}
		require.ErrorIs(t, limits.Check("a"), auditlog.ErrTooMany)
	})
}
