// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/instance"
)

// configurationWriter is the writer of changes that come from the server's configuration.
const configurationWriter = "configuration"

// Causes are the requests that a group has its present state from, as far as this server
// has seen them. They are not stored: a server of an earlier version rejects an object with
// fields that it does not know. After a restart only the generation of Revision is known.
type Causes struct {
	// Size is the request that has set the size.
	Size audit.Request
	// Config is the request that has changed InfraConfigHash.
	Config audit.Request
}

// after returns the causes of next, which request makes of a group with the causes c.
// before is that group, nil if there is none.
func (c Causes) after(request audit.Request, before, next *Group) Causes {
	if before == nil || before.Size != next.Size {
		c.Size = request
	}
	if before != nil && before.InfraConfigHash != next.InfraConfigHash {
		c.Config = request
	}
	return c
}

func (g *Group) causes() Causes {
	if g == nil {
		return Causes{}
	}
	return g.Causes
}

// requestOf returns the request of ctx for an object of a revision, nil for none. It is the
// zero value if ctx belongs to no call.
func requestOf(ctx context.Context, revision *Revision) audit.Request {
	request := audit.RequestFrom(ctx)
	if revision != nil && request.ID != "" {
		request.Generation = revision.Generation
	}
	return request
}

// DeletedBy returns the request that deleted a group. It is the zero value if the group was
// not deleted, or by another server.
func (s *Store) DeletedBy(key instance.GroupKey) audit.Request {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.deletedBy[key]
}
