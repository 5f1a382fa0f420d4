// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package auditlog stores who was let into a cluster: an object of the storage for each nonce of an
// operator, for certificates, each change of a secret, each revocation, and
// each registration that a provider contradicts
// (docs/server-reference.md#audit-log). Logs of a process, and above all of an administrator's
// command, do not last.
package auditlog

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/internal/clientrate"
	"nstance.dev/operator/pkg/server/storage"
)

// Entry is an object of the audit log. No field has a part of a secret, a nonce or a key. Empty
// fields are left out.
type Entry struct {
	// At is when the entry was written, by the clock of the writer. Write sets it.
	At     time.Time    `json:"at"`
	Action audit.Action `json:"action"`
	// Name is what the entry is about: the serial numbers of certificates, the key of the object
	// that claims a nonce, the name of a secret. It is empty for all certificates of a client.
	Name string `json:"name,omitempty"`
	// Tenant, Client and Instance are who may call with a certificate or a nonce: a client, or the
	// agent of an instance.
	Tenant   string `json:"tenant,omitempty"`
	Client   string `json:"client,omitempty"`
	Instance string `json:"instance,omitempty"`
	// ExpiresAt is when a certificate or a nonce expires.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// Nonce is the key of the object that claims the nonce that a certificate was issued for.
	Nonce string `json:"nonce,omitempty"`
	// Reason is why: a registration, a renewal, a file of an instance, or a command.
	Reason string `json:"reason"`
	// Writer requested the change: the client of a server, or the user of nstance-admin.
	Writer string `json:"writer,omitempty"`
	// RequestID is the id of a request to a server.
	RequestID string `json:"request_id,omitempty"`
}

// kinds are the kinds of what entries are about, in the log.
var kinds = map[audit.Action]string{
	audit.IssueNonce: "Nonce", audit.IssueCertificate: "Certificate", audit.RevokeCertificates: "Certificate",
	audit.RefuseRegistration: "Registration", audit.SetSecret: "Secret", audit.DeleteSecret: "Secret",
}

// Log is the audit log of a shard, or of the cluster.
type Log struct {
	Store storage.Store
	// Scope is the id of the shard, or storage.ClusterAuditLog.
	Scope string
}

// Write stores an entry, and writes it to the log of the process. A caller that issues something
// does so only after Write has succeeded.
func (l Log) Write(ctx context.Context, entry Entry) error {
	entry.At = time.Now().UTC()
	data, err := json.MarshalIndent(entry, "", "  ")
	if err != nil {
		return fmt.Errorf("encode an entry of the audit log: %w", err)
	}
	// Entries of the same time have keys of their own.
	if _, err := l.Store.Create(ctx, storage.AuditLogKey(l.Scope, entry.At, rand.Text()), append(data, '\n')); err != nil {
		return fmt.Errorf("store an entry of the audit log (%s): %w", entry.Action, err)
	}
	line := audit.Entry{
		Action: entry.Action, Instance: entry.Instance, Kind: kinds[entry.Action], Name: entry.Name,
		Writer: entry.Writer, Reason: entry.Reason, Result: audit.Accepted,
	}
	if entry.Action == audit.RefuseRegistration {
		line.Result = audit.Rejected
	}
	if !entry.ExpiresAt.IsZero() {
		line.To = "valid until " + entry.ExpiresAt.UTC().Format(time.RFC3339)
	}
	line.Log(ctx)
	return nil
}

const (
	// interval is how often a client may cause an entry in the long run, and burst how many
	// entries it may cause at once (docs/server-reference.md#limits).
	interval = 10 * time.Second
	burst    = 30
)

// ErrTooMany means that a client has caused many entries, and may cause another later.
var ErrTooMany = errors.New("too many certificates were issued to this client: another is issued every " + interval.String())

// Limits limits how many entries each client may cause, because nobody deletes them. The zero
// value is ready for use.
type Limits struct {
	clients clientrate.Limits
}

// Check returns ErrTooMany if a client may not cause an entry now.
func (l *Limits) Check(client string) error {
	if !l.clients.Allow(client, rate.Every(interval), burst) {
		return ErrTooMany
	}
	return nil
}
