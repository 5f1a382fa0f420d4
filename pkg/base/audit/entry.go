// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package audit defines the audit trail that operator and servers have in common: a line
// at the default verbosity for everything that shrinks, deletes or terminates, and the
// request id that connects the lines of both (docs/operations.md#audit-trail).
package audit

import (
	"context"

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

// Keys are all keys.
var Keys = []string{
	KeyShard, KeyGroup, KeyInstance, KeyKind, KeyName, KeyFrom, KeyTo, KeyGeneration, KeyWriter, KeyReason, KeyDeleteAt, KeyResult,
	KeyError, KeyRequestID,
}

// Result is the result of a call as its caller knows it.
type Result string

const (
	// Accepted means that the server has replied that it does what was requested.
	Accepted Result = "accepted"
	// Rejected means that the server has replied that it does nothing.
	Rejected Result = "rejected"
	// Unknown means that there was no reply, or one from which it is not clear whether the
	// call had its effect.
	Unknown Result = "unknown"
)

// Entry is one line. Fields that are empty are left out. It has no field for settings of
// users that can be secret, such as vars.
type Entry struct {
	Action Action
	// Shard, Group and Instance are what the entry is about.
	Shard, Group, Instance string
	// Kind and Name are those of an object of the Kubernetes API.
	Kind, Name string
	// From and To are the size, settings or state before and after. nil is left out.
	From, To any
	// Writer is who wanted it: a field manager, or the client of a server.
	Writer string
	// Generation is that of the object that the request comes from.
	Generation int64
	Reason     string
	// DeleteAt is the deadline of a drain.
	DeleteAt any
	// Result and Err are those of a call.
	Result Result
	Err    error
	// RequestID is the id of the request that the entry follows from. It stays empty for
	// the call itself, whose logger has the id.
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
