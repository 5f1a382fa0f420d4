// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// limit sets shard.max_on_demand.
func (s *service) limit(most int32) {
	s.t.Helper()
	c := *newConfig()
	c.Shard.MaxOnDemand = ptr.To(most)
	require.NoError(s.t, s.Store.Reconfigure(s.t.Context(), &c))
}

// expectOutOfCapacity expects the status with which the operator tries other shards, and this
// shard again later.
func expectOutOfCapacity(t *testing.T, err error, want string) {
	t.Helper()
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, want)
	require.Len(t, status.Convert(err).Details(), 1)
	info, _ := status.Convert(err).Details()[0].(*errdetails.ErrorInfo)
	assert.Equal(t, nstancev1.ReasonOutOfCapacity, info.GetReason())
}

// keyed returns a request with an idempotency key.
func keyed(key string, vars map[string]string) *nstancev1.CreateInstanceRequest {
	request := createRequest("plain")
	request.IdempotencyKey, request.Config.Vars = key, vars
	return request
}

// What a request has is stored in a record, and so it is limited as in a group.
func TestSizeOfACreateRequest(t *testing.T) {
	s := newService(t)
	many := map[string]string{}
	for n := range 65 {
		many[fmt.Sprint("v", n)] = ""
	}
	for name, test := range map[string]struct {
		request *nstancev1.CreateInstanceRequest
		want    string
	}{
		"a long value": {keyed("", map[string]string{"a": strings.Repeat("v", 4097)}), "config.vars[a]: Too long: may not be more than 4096 bytes"},
		"a long name":  {keyed("", map[string]string{strings.Repeat("n", 257): ""}), "config.vars: Too long: may not be more than 256 bytes"},
		"many vars":    {keyed("", many), "config.vars: Too many: 65: must have at most 64 items"},
		"a long key":   {keyed(strings.Repeat("k", 129), nil), "idempotency_key: Too long: may not be more than 128 bytes"},
	} {
		_, err := s.CreateInstance(s.ctx(), test.request)
		expectStatus(t, name, err, codes.InvalidArgument, test.want)
	}
	assert.Zero(t, s.records())
	delete(many, "v64")
	many["v0"], many[strings.Repeat("n", 256)] = strings.Repeat("v", 4096), ""
	delete(many, "v1")
	s.create(keyed(strings.Repeat("k", 128), many))
}

// A tenant has a number of on-demand instances. Other tenants, managed instances, and requests
// whose instance exists are not affected, and a deleted instance makes room.
func TestNumberOfOnDemandInstances(t *testing.T) {
	s := newService(t)
	s.limit(2)
	s.add()
	first := s.create(keyed("1", nil))
	second := s.create(keyed("2", nil))
	const want = "instance of group plain: the tenant has 2 on-demand instances on this shard, at most 2 are allowed (shard.max_on_demand)"
	_, err := s.CreateInstance(s.ctx(), keyed("3", nil))
	expectOutOfCapacity(t, err, want)
	assert.Equal(t, first.ID, s.create(keyed("1", nil)).ID)
	_, err = s.CreateInstance(as(t.Context(), "other"), keyed("3", nil))
	require.NoError(t, err)

	require.NoError(t, s.cache.Close())
	s.start(filepath.Join(t.TempDir(), "another cache"))
	s.limit(2)
	_, err = s.CreateInstance(s.ctx(), keyed("3", nil))
	expectOutOfCapacity(t, err, want)
	require.NoError(t, s.Instances.SetDeleting(t.Context(), second.ID, instance.ReasonRequested))
	require.NoError(t, s.Instances.Remove(t.Context(), second.ID))
	s.create(keyed("3", nil))

	s.limit(0)
	_, err = s.CreateInstance(as(t.Context(), "other"), keyed("4", nil))
	expectOutOfCapacity(t, err, "at most 0 are allowed")
}

// A tenant that deletes its instances again cannot create more in an hour. Other tenants and requests
// whose instance exists are not affected.
func TestNumberOfOnDemandInstancesInAnHour(t *testing.T) {
	s := newService(t)
	c := *newConfig()
	c.Shard.MaxOnDemandPerHour = ptr.To[int32](2)
	require.NoError(t, s.Store.Reconfigure(t.Context(), &c))
	old := instance.Record{ID: newID(t, "wrk"), Tenant: "default", Group: "plain", OnDemand: true, CreatedAt: time.Now().Add(-time.Hour - time.Second)}
	require.NoError(t, s.Instances.Add(t.Context(), old))

	first := s.create(keyed("1", nil))
	s.create(keyed("2", nil))
	require.NoError(t, s.Instances.SetDeleting(t.Context(), first.ID, instance.ReasonRequested))
	require.NoError(t, s.Instances.Remove(t.Context(), first.ID))
	_, err := s.CreateInstance(s.ctx(), keyed("3", nil))
	expectOutOfCapacity(t, err, "instance of group plain: the tenant has created 2 on-demand instances on this shard in the last hour, "+
		"at most 2 are allowed (shard.max_on_demand_per_hour)")
	assert.Equal(t, first.ID, s.create(keyed("1", nil)).ID)
	_, err = s.CreateInstance(as(t.Context(), "other"), keyed("3", nil))
	require.NoError(t, err)
}

// Concurrent requests do not exceed the limit together.
func TestConcurrentRequestsKeepTheLimit(t *testing.T) {
	s := newService(t)
	s.limit(5)
	errs := make([]error, 100)
	var calling sync.WaitGroup
	for n := range errs {
		calling.Go(func() { _, errs[n] = s.CreateInstance(s.ctx(), keyed(fmt.Sprint(n), nil)) })
	}
	calling.Wait()
	assert.Equal(t, 5, s.records())
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	require.Len(t, errs, 95)
	for _, err := range errs {
		expectOutOfCapacity(t, err, "shard.max_on_demand")
	}
	assert.Empty(t, s.createRequests.reserved)
}

// A record that was not stored needs nothing.
func TestRefusedRequestsNeedNothing(t *testing.T) {
	s := newService(t)
	s.limit(1)
	s.storage.loseResponse = true
	_, err := s.CreateInstance(s.ctx(), keyed("a", nil))
	require.Equal(t, codes.Unavailable, status.Code(err))
	assert.Empty(t, s.createRequests.reserved)
	s.create(keyed("a", nil))
	assert.Empty(t, s.createRequests.reserved)
}

// The vars of all on-demand instances share a limit, also of deleted ones that the server still
// knows: otherwise they would fill its memory.
func TestSizeOfOnDemandInstances(t *testing.T) {
	s := newService(t)
	vars := map[string]string{}
	for n := range 64 {
		vars[fmt.Sprint("v", n)] = strings.Repeat("v", 4096)
	}
	for n := range 63 {
		record := s.create(keyed(fmt.Sprint(n), vars))
		if n == 0 {
			require.NoError(t, s.Instances.SetDeleting(t.Context(), record.ID, instance.ReasonRequested))
			require.NoError(t, s.Instances.Remove(t.Context(), record.ID))
		}
	}
	_, err := s.CreateInstance(s.ctx(), keyed("63", vars))
	expectOutOfCapacity(t, err, "vars and idempotency keys of the tenant's on-demand instances would have 16")
	require.ErrorContains(t, err, "at most 16777216 are allowed")
	s.create(keyed("64", map[string]string{"a": "b"}))
	s.Instances.Purge(t.Context(), epoch.Add(1))
	s.create(keyed("65", vars))
}
