// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/server/config"
)

// TestConfigurationIsAudited: editing the configuration can shrink groups, too. The start of
// a server changes nothing.
func TestConfigurationIsAudited(t *testing.T) {
	log, store := audittest.NewLog(), newStorage(t)
	ctx := log.Context(t.Context())
	s, err := Open(ctx, nil, newConfig(), store)
	require.NoError(t, err)
	log.Expect(t)

	next := newConfig()
	main := next.Groups["default"]["main"]
	main.Size = new(int32(1))
	next.Groups["default"]["main"] = main
	require.NoError(t, s.Reconfigure(ctx, next))
	lines := log.Expect(t, "Audit: shrink group shard=us-west-2a group=main from=3 to=1 writer=configuration reason=scale-down result=accepted")
	assert.Equal(t, "default", lines[0].Values["tenant"])
	require.NoError(t, s.Reconfigure(ctx, next))
	log.Expect(t)

	next = newConfig()
	next.Groups["default"]["main"] = main
	next.Defaults.Userdata = config.Userdata{Inline: "#!/bin/sh\necho secret"}
	require.NoError(t, s.Reconfigure(ctx, next))
	assert.Len(t, log.Take(), 2, "a group each")
	assert.NotContains(t, log.Text(), "secret")
}

// TestCauses are the requests that set the present size and configuration.
func TestCauses(t *testing.T) {
	s := open(t, newStorage(t))
	change := func(id string, generation int64, c Change) Causes {
		t.Helper()
		c.Revision = &Revision{UID: "u", Generation: generation}
		group, _, err := s.Upsert(audit.WithRequest(t.Context(), audit.Request{ID: id, Writer: "client"}), dynamic, c)
		require.NoError(t, err)
		return group.Causes
	}
	request := func(id string, generation int64) audit.Request {
		return audit.Request{ID: id, Writer: "client", Generation: generation}
	}
	worker := Settings{Template: "worker"}
	assert.Equal(t, Causes{Size: request("a", 1)}, change("a", 1, Change{Settings: worker, Size: 3}))
	assert.Equal(t, Causes{Size: request("a", 1)}, change("b", 2, Change{Settings: worker, Size: 3}))
	assert.Equal(t, Causes{Size: request("c", 3)}, change("c", 3, Change{Settings: worker, Size: 2}))
	other := Settings{Template: "worker", InstanceType: "t3.large"}
	assert.Equal(t, Causes{Size: request("c", 3), Config: request("d", 4)}, change("d", 4, Change{Settings: other, Size: 2}))

	ctx := audit.WithRequest(t.Context(), audit.Request{ID: "e", Writer: "client"})
	_, err := s.Delete(ctx, dynamic, &Revision{UID: "u", Generation: 5})
	require.NoError(t, err)
	assert.Equal(t, request("e", 5), s.DeletedBy(dynamic))
	require.NoError(t, s.ForgetDeleted(ctx, s.DeletedGroups()))
	assert.Empty(t, s.DeletedBy(dynamic))
}
