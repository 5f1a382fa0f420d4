// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// logged returns the context of a call of the tenant default that is logged.
func (s *service) logged(log *audittest.Log) context.Context {
	return audit.WithRequest(as(log.Context(s.t.Context()), "default"), audit.Request{ID: audit.NewRequestID(), Writer: "client"})
}

func TestUpsertGroupIsAudited(t *testing.T) {
	s, log := newService(t), audittest.NewLog()
	generation := int64(0)
	upsert := func(change func(*nstancev1.UpsertGroupRequest)) error {
		generation++
		request := &nstancev1.UpsertGroupRequest{
			Key:      "main",
			Config:   &nstancev1.GroupConfig{Size: 3, Vars: map[string]string{"password": "secret"}},
			Revision: &nstancev1.Revision{Uid: "u", Generation: generation},
		}
		change(request)
		_, err := s.UpsertGroup(s.logged(log), request)
		return err
	}
	none := func(*nstancev1.UpsertGroupRequest) {}
	require.NoError(t, upsert(none))
	log.Expect(t) // it grows
	require.NoError(t, upsert(func(r *nstancev1.UpsertGroupRequest) { r.Config.Vars["password"] = "secret2" }))
	log.Expect(t) // agents receive vars
	require.NoError(t, upsert(func(r *nstancev1.UpsertGroupRequest) { r.Config.Size = 1 }))
	log.Expect(t, "Audit: shrink group shard=us-west-2a group=main from=3 to=1 generation=3 writer=client reason=scale-down result=accepted requestID=ID")
	generation-- // a repeated request
	require.NoError(t, upsert(func(r *nstancev1.UpsertGroupRequest) { r.Config.Size = 1 }))
	log.Expect(t)
	require.NoError(t, upsert(none))
	require.NoError(t, upsert(func(r *nstancev1.UpsertGroupRequest) {
		r.Config.InstanceType, r.Config.Vars["password"] = "c7i.large", "secret3"
	}))
	log.Expect(t, "Audit: replace instances of group shard=us-west-2a group=main from=instanceType=m7i.large to=instanceType=c7i.large"+
		" generation=5 writer=client reason=config-change result=accepted requestID=ID")
	require.NoError(t, upsert(func(r *nstancev1.UpsertGroupRequest) { r.Config.Size, r.Config.InstanceType = 2, "m7i.large" }))
	log.Expect(t, "Audit: shrink group shard=us-west-2a group=main from=3 to=2 generation=6 writer=client"+
		" reason=scale-down, config-change result=accepted requestID=ID")
	require.Error(t, upsert(func(r *nstancev1.UpsertGroupRequest) { r.Config.Size, r.Revision.Generation = 1, 1 }))
	log.Expect(t) // it is rejected
	assert.NotContains(t, log.Text(), "secret")
}

func TestDeleteGroupIsAudited(t *testing.T) {
	s, log := newService(t), audittest.NewLog()
	for _, config := range []*nstancev1.UpsertGroupRequest{
		{Key: "main", Config: &nstancev1.GroupConfig{Size: 5}},
		{Key: "dynamic", Config: &nstancev1.GroupConfig{Template: "worker", Size: 4}},
	} {
		_, err := s.UpsertGroup(s.logged(log), config)
		require.NoError(t, err)
	}
	log.Expect(t)
	for range 2 {
		for _, key := range []string{"main", "dynamic"} {
			_, err := s.DeleteGroup(s.logged(log), &nstancev1.DeleteGroupRequest{Key: key})
			require.NoError(t, err)
		}
	}
	log.Expect(t,
		"Audit: delete group shard=us-west-2a group=main from=5 to=1 writer=client reason=requested result=accepted requestID=ID",
		"Audit: delete group shard=us-west-2a group=dynamic from=4 to=0 writer=client reason=requested result=accepted requestID=ID")
}

func TestDeletionsOfInstancesAreAudited(t *testing.T) {
	s, log := newService(t), audittest.NewLog()
	deleted, drained := s.add(), s.add()
	for range 2 {
		_, err := s.DeleteInstance(s.logged(log), &nstancev1.DeleteInstanceRequest{InstanceId: deleted.ID})
		require.NoError(t, err)
		_, err = s.AcknowledgeDrained(s.logged(log), &nstancev1.DrainAckRequest{InstanceId: drained.ID})
		require.NoError(t, err)
	}
	log.Expect(t,
		"Audit: delete instance shard=us-west-2a group=plain instance="+deleted.ID+" from=running to=deleting writer=client reason=requested result=accepted requestID=ID",
		"Audit: acknowledge drain shard=us-west-2a group=plain instance="+drained.ID+" from=running to=deleting writer=client reason=unhealthy result=accepted requestID=ID")
}
