// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package audit defines the audit trail of operator and servers: a log line at the default
// verbosity for everything that shrinks, deletes or terminates, for everything that lets a client
// in or keeps it out, and the request id that
// connects the lines of operator and server (docs/reference.md#audit-trail).
package audit

import (
	"context"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"
)

// Keys of the values of a line. The request id is a value of the logger of its call, so
// that all lines of the call have it.
const (
	KeyShard      = "shard"
	KeyGroup      = "group"
	KeyInstance   = "instance"
	KeyKind       = "kind"
	KeyName       = "name"
	KeyFrom       = "from"
	KeyTo         = "to"
	KeyGeneration = "generation"
	KeyWriter     = "writer"
	KeyReason     = "reason"
	KeyDeleteAt   = "deleteAt"
	KeyResult     = "result"
	KeyError      = "err"
	KeyRequestID  = "requestID"
)

// Keys lists all keys, in the order of a line.
var Keys = []string{
	KeyShard, KeyGroup, KeyInstance, KeyKind, KeyName, KeyFrom, KeyTo, KeyGeneration, KeyWriter, KeyReason, KeyDeleteAt, KeyResult,
	KeyError, KeyRequestID,
}

// Result is the result of a call as its caller knows it.
type Result string

const (
	// Accepted means that the server has accepted the request.
	Accepted Result = "accepted"
	// Rejected means that the server has rejected the request, and changed nothing.
	Rejected Result = "rejected"
	// Unknown means that the caller does not know whether the call had its effect, for
	// example after a timeout.
	Unknown Result = "unknown"
)

// Entry is a line of the audit trail. Empty fields are left out. It has no field for
// settings that may be secret, such as vars.
type Entry struct {
	Action Action
	// Shard, Group and Instance name the changed object of a server.
	Shard, Group, Instance string
	// Kind and Name name the changed object of the Kubernetes API, or what was issued or revoked:
	// a Nonce, a Certificate, a Secret of the servers.
	Kind, Name string
	// From and To are the size, settings or state before and after. nil is left out.
	From, To any
	// Writer requested the change: a field manager, or the client of a server.
	Writer string
	// Generation is the generation of the object that caused the request.
	Generation int64
	Reason     string
	// DeleteAt is the deadline of a drain.
	DeleteAt any
	// Result and Err are the result of a call.
	Result Result
	Err    error
	// RequestID is the id of the request that caused the change. It stays empty for the
	// call itself, whose logger adds the id.
	RequestID string
}

// Log writes e with the logger of ctx, at the default verbosity.
func (e Entry) Log(ctx context.Context) {
	klog.FromContext(ctx).WithCallDepth(1).Info(string(e.Action), e.values()...)
}

// values returns keys and values in the order of Keys.
func (e Entry) values() []any {
	var values []any
	add := func(key string, value any, empty bool) {
		if !empty {
			values = append(values, key, value)
		}
	}
	add(KeyShard, e.Shard, e.Shard == "")
	add(KeyGroup, e.Group, e.Group == "")
	add(KeyInstance, e.Instance, e.Instance == "")
	add(KeyKind, e.Kind, e.Kind == "")
	add(KeyName, e.Name, e.Name == "")
	add(KeyFrom, e.From, e.From == nil)
	add(KeyTo, e.To, e.To == nil)
	add(KeyGeneration, e.Generation, e.Generation == 0)
	add(KeyWriter, e.Writer, e.Writer == "")
	add(KeyReason, e.Reason, e.Reason == "")
	add(KeyDeleteAt, e.DeleteAt, e.DeleteAt == nil)
	add(KeyResult, string(e.Result), e.Result == "")
	add(KeyError, e.Err, e.Err == nil)
	add(KeyRequestID, e.RequestID, e.RequestID == "")
	return values
}

// Action is the message of a line of the audit trail. Operator and servers use the same
// actions (docs/reference.md#audit-trail).
type Action string

const (
	// ShrinkGroup means that the size of a group was lowered, and possibly other settings changed.
	ShrinkGroup Action = "Audit: shrink group"
	// ReplaceInstances means that settings of a group were changed, so that its instances
	// are replaced.
	ReplaceInstances Action = "Audit: replace instances of group"
	// DeleteGroup means that the settings of operators for a group were deleted.
	DeleteGroup Action = "Audit: delete group"
	// DeleteInstance means that the deletion of an instance was requested.
	DeleteInstance Action = "Audit: delete instance"
	// AcknowledgeDrain means that the Node of an instance is drained, so that the server may
	// delete the instance.
	AcknowledgeDrain Action = "Audit: acknowledge drain"
	// DrainInstance means that a server has begun to drain an instance that it will terminate.
	DrainInstance Action = "Audit: drain instance"
	// TerminateInstance means that a server terminates an instance at its provider.
	TerminateInstance Action = "Audit: terminate instance"
	// DeleteObject means that the operator has deleted an object of the Kubernetes API.
	DeleteObject Action = "Audit: delete object"
	// IssueNonce means that a nonce of an operator was created.
	IssueNonce Action = "Audit: issue nonce"
	// IssueCertificate means that a certificate was signed, also one that an instance gets as a
	// file.
	IssueCertificate Action = "Audit: issue certificate"
	// RefuseRegistration means that the provider contradicts what an agent with a valid nonce says
	// of its machine, so that the agent gets no certificate.
	RefuseRegistration Action = "Audit: refuse registration"
	// RevokeCertificates means that certificates of a client were revoked.
	RevokeCertificates Action = "Audit: revoke certificates"
	// SetSecret means that a secret was stored, or encrypted again.
	SetSecret Action = "Audit: set secret"
	// DeleteSecret means that a secret was deleted.
	DeleteSecret Action = "Audit: delete secret"
	// ReplaceCA means that a phase of the replacement of the CA has begun.
	ReplaceCA Action = "Audit: replace CA"
)

// Actions lists all actions.
var Actions = []Action{
	ShrinkGroup, ReplaceInstances, DeleteGroup, DeleteInstance, AcknowledgeDrain, DrainInstance, TerminateInstance, DeleteObject,
	IssueNonce, IssueCertificate, RefuseRegistration, RevokeCertificates, SetSecret, DeleteSecret, ReplaceCA,
}

const (
	// RequestIDKey is the key of the gRPC metadata with the request id of a call
	// (docs/protocol.md#request-ids).
	RequestIDKey = "nstance-request-id"
	// maxRequestID is the maximum length of a request id in bytes.
	maxRequestID = 64
)

// Request has the fields of a call that later log lines repeat.
type Request struct {
	// ID is the request id.
	ID string
	// Writer is the client that sent the request.
	Writer string
	// Generation is the generation of the object that caused the request, 0 if unknown.
	Generation int64
}

// NewRequestID returns a new request id.
func NewRequestID() string { return string(uuid.NewUUID()) }

// ValidRequestID reports whether id has 1 to 64 letters, digits, hyphens, underscores and
// dots. Other ids could forge lines or values of a log.
func ValidRequestID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// requestKey is the context key of the Request.
type requestKey struct{}

// WithRequest returns the context of a call: the logger has the request id.
func WithRequest(ctx context.Context, request Request) context.Context {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), KeyRequestID, request.ID)
	return klog.NewContext(context.WithValue(ctx, requestKey{}, request), logger)
}

// WithNewRequest returns the context of a call with a new request id, and the id.
func WithNewRequest(ctx context.Context) (call context.Context, id string) {
	id = NewRequestID()
	return WithRequest(ctx, Request{ID: id}), id
}

// Outgoing returns ctx with a request id in the metadata of outgoing calls. The id is from
// ctx, or new.
func Outgoing(ctx context.Context) context.Context {
	id := RequestFrom(ctx).ID
	if id == "" {
		id = NewRequestID()
	}
	return metadata.AppendToOutgoingContext(ctx, RequestIDKey, id)
}

// RequestFrom returns the Request of the call that ctx belongs to, or the zero value
// outside of calls.
func RequestFrom(ctx context.Context) Request {
	request, _ := ctx.Value(requestKey{}).(Request)
	return request
}
