// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/storage"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// FuzzCreateInstance makes arbitrary requests of an operator for an instance. What is accepted is of
// the operator's tenant, is within the limits, and a server that starts reads its record.
func FuzzCreateInstance(f *testing.F) {
	add := func(request *nstancev1.CreateInstanceRequest) {
		seed, err := proto.Marshal(request)
		require.NoError(f, err)
		f.Add(seed)
	}
	add(&nstancev1.CreateInstanceRequest{IdempotencyKey: "a key", Config: &nstancev1.InstanceConfig{
		Group: "plain", InstanceType: "c7i.large", SubnetPool: "open", Vars: map[string]string{"a": "b"},
	}})
	add(&nstancev1.CreateInstanceRequest{InstanceId: newID(f, "arm"), Config: &nstancev1.InstanceConfig{Group: "plain", Template: "arm"}})
	add(&nstancev1.CreateInstanceRequest{InstanceId: "../x", Config: &nstancev1.InstanceConfig{Group: "main", Template: "foreign"}})
	add(&nstancev1.CreateInstanceRequest{Config: &nstancev1.InstanceConfig{Group: "plain", Vars: map[string]string{"a": "$(reboot)\x1b"}}})
	add(&nstancev1.CreateInstanceRequest{})
	f.Fuzz(func(t *testing.T, data []byte) {
		request := &nstancev1.CreateInstanceRequest{}
		if proto.Unmarshal(data, request) != nil {
			return
		}
		s := newService(t)
		response, err := s.CreateInstance(s.ctx(), request)
		if err != nil {
			assert.NotContains(t, []codes.Code{codes.Unknown, codes.Internal, codes.Unavailable}, status.Code(err), err)
			return
		}
		id, err := puidv7.Parse(response.InstanceId)
		require.NoError(t, err)
		if request.InstanceId != "" {
			assert.Equal(t, request.InstanceId, response.InstanceId)
		}
		object, err := s.storage.Get(t.Context(), storage.InstanceKey("us-west-2a", "default", id.StorageKey()))
		require.NoError(t, err)
		record, err := instance.UnmarshalRecord(object.Data)
		require.NoError(t, err)
		assert.Equal(t, "default", record.Tenant)
		assert.True(t, record.OnDemand)
		assert.Empty(t, groups.ValidateVarChanges(nil, []string{"*"}, nil, record.Vars), "control characters")
		assert.LessOrEqual(t, len(record.IdempotencyKey), 128)
	})
}
