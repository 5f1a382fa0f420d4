// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// checkCapacity declines a new on-demand instance that the provider would reject at
// present: another shard may have capacity. It is called only before a record may exist,
// because a request that may have been accepted is always accepted again.
func (s *OperatorService) checkCapacity(record *instance.Record) error {
	if s.Capacity == nil {
		return nil
	}
	group, found := s.Store.Get(record.Key())
	if !found {
		return nil
	}
	c := s.Store.Config()
	effective, err := provision.Effective(c, group, record)
	if err != nil {
		// The configuration has changed since the request was validated.
		return status.Errorf(codes.Unavailable, "instance of group %s: %v", record.Group, err)
	}
	spec := provision.Common(effective)
	var lack error
	for _, pool := range effective.SubnetPools {
		for _, subnet := range c.Shard.SubnetPools[pool] {
			spec.Subnet = subnet
			err, isLack := provider.AsCapacityError(s.Capacity.CheckCapacity(spec))
			if !isLack {
				return nil
			}
			lack = err
		}
	}
	if lack == nil {
		return nil
	}
	declined, err := status.Newf(codes.ResourceExhausted, "instance of group %s: %v", record.Group, lack).WithDetails(&errdetails.ErrorInfo{
		Reason: nstancev1.ReasonOutOfCapacity,
		Domain: nstancev1.ErrorDomain,
	})
	if err != nil {
		// Only a detail that cannot be encoded is an error, or the code OK.
		panic(err)
	}
	return declined.Err()
}
