// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/server/provider"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// fullSubnets are the subnets without capacity.
type fullSubnets map[string]bool

func (f fullSubnets) CheckCapacity(spec provider.Spec) error {
	if f[spec.Subnet] {
		return provider.OutOfCapacity("no room in subnet %s", spec.Subnet)
	}
	return nil
}

// A request that may have been accepted is accepted again, with or without capacity: the
// operator would otherwise request a second instance from another shard.
func TestARequestThatMayBeStoredIsNotDeclined(t *testing.T) {
	s := newService(t)
	full := fullSubnets{}
	s.Capacity = full
	create := func(key string) (string, error) {
		reply, err := s.CreateInstance(s.ctx(), &nstancev1.CreateInstanceRequest{
			IdempotencyKey: key, Config: &nstancev1.InstanceConfig{Group: "plain"},
		})
		return reply.GetInstanceId(), err
	}
	accepted, err := create("accepted")
	require.NoError(t, err)
	s.storage.loseResponse = true
	_, err = create("lost")
	require.Equal(t, codes.Unavailable, status.Code(err))

	full["subnet-a"] = true
	_, err = create("new")
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	again, err := create("accepted")
	require.NoError(t, err)
	assert.Equal(t, accepted, again)
	lost, err := create("lost")
	require.NoError(t, err)
	assert.NotEmpty(t, lost)
	// Of the declined request there is nothing.
	assert.Len(t, s.Instances.List(key("plain")), 2)
}

// An instance with a subnet pool of its own needs no capacity of the group's.
func TestCapacityIsThatOfTheInstance(t *testing.T) {
	s := newService(t)
	s.Capacity = fullSubnets{"subnet-b": true}
	create := func(group, pool string) error {
		_, err := s.CreateInstance(s.ctx(), &nstancev1.CreateInstanceRequest{
			Config: &nstancev1.InstanceConfig{Group: group, SubnetPool: pool},
		})
		return err
	}
	assert.Equal(t, codes.ResourceExhausted, status.Code(create("main", "")))
	assert.NoError(t, create("main", "open"))
}
