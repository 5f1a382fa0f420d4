// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/instances"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// CreateInstance orders one on-demand instance beside the size of its group, and
// answers when that is stored. The group's reconciliation does the rest.
//
// A call with an id or an idempotency key that the caller's tenant used before
// gives the instance of that time, whatever became of it and of its group, for as
// long as it is remembered. It has to ask for the same: otherwise a key that was
// used is InvalidArgument, and an id that was used is AlreadyExists. Who gives
// neither and gets Unavailable may have ordered an instance all the same.
func (s *OperatorService) CreateInstance(ctx context.Context, request *nstancev1.CreateInstanceRequest) (*nstancev1.CreateInstanceResponse, error) {
	logger := klog.FromContext(ctx)
	wanted := newRecord(clientFrom(ctx).Tenant, request)
	logger.V(2).Info("Received order of an instance", "group", wanted.Group, "instance", wanted.ID)
	if request.GetConfig() == nil {
		return nil, status.Error(codes.InvalidArgument, "config: Required value")
	}
	if wanted.Group == "" {
		return nil, status.Error(codes.InvalidArgument, "config.group: Required value")
	}
	if err := groups.ValidateKey(wanted.Key()); err != nil {
		return nil, toStatus(err)
	}
	name := nameOf(wanted)
	defer s.orders.lock(name)()
	if existing, found := s.existing(wanted); found {
		return repeated(existing, wanted)
	}

	record, unsure := s.orders.unsure(name)
	switch {
	case !unsure:
		if err := s.complete(&wanted); err != nil {
			return nil, err
		}
		record = wanted
	case !sameOrder(record, wanted):
		return nil, differentOrder(record, wanted)
	}
	err := s.Instances.Add(ctx, record)
	s.orders.settle(name, record, err)
	if errors.Is(err, instances.ErrExists) {
		// Two calls at the same time had one id and different keys, or the id is
		// in the storage and nobody remembers it.
		if existing, found := s.Instances.Get(record.ID); found {
			return repeated(existing, wanted)
		}
		return nil, status.Errorf(codes.AlreadyExists, "instance_id: %q was used before", record.ID)
	}
	if err != nil {
		logger.Error(err, "Instance was not ordered", "instance", record.ID, "group", record.Group)
		return nil, toStatus(err)
	}
	logger.Info("On-demand instance is ordered", "instance", record.ID, "group", record.Group)
	s.Changed(record.Key())
	return &nstancev1.CreateInstanceResponse{InstanceId: record.ID, Status: instanceStatus(&instance.Instance{Record: record})}, nil
}

// newRecord returns what a request asks for. The rest is for complete.
func newRecord(tenant string, request *nstancev1.CreateInstanceRequest) instance.Record {
	config := request.GetConfig()
	return instance.Record{
		ID:             request.GetInstanceId(),
		Tenant:         tenant,
		Group:          config.GetGroup(),
		OnDemand:       true,
		IdempotencyKey: request.GetIdempotencyKey(),
		Template:       config.GetTemplate(),
		InstanceType:   config.GetInstanceType(),
		SubnetPool:     config.GetSubnetPool(),
		Vars:           config.GetVars(),
	}
}

// existing returns the instance that was made for the same order.
func (s *OperatorService) existing(wanted instance.Record) (instance.Instance, bool) {
	if wanted.IdempotencyKey != "" {
		if i, found := s.Instances.ByIdempotencyKey(wanted.Tenant, wanted.IdempotencyKey); found {
			return i, true
		}
	}
	return s.Instances.Get(wanted.ID)
}

// repeated answers a call that has an instance already.
func repeated(existing instance.Instance, wanted instance.Record) (*nstancev1.CreateInstanceResponse, error) {
	if !sameOrder(existing.Record, wanted) {
		return nil, differentOrder(existing.Record, wanted)
	}
	return &nstancev1.CreateInstanceResponse{InstanceId: existing.ID, Status: instanceStatus(&existing)}, nil
}

// sameOrder tells whether wanted asks for what record was made of.
func sameOrder(record, wanted instance.Record) bool {
	return record.OnDemand && record.Key() == wanted.Key() &&
		record.IdempotencyKey == wanted.IdempotencyKey &&
		(wanted.ID == "" || record.ID == wanted.ID) &&
		record.Template == wanted.Template &&
		record.InstanceType == wanted.InstanceType &&
		record.SubnetPool == wanted.SubnetPool &&
		maps.Equal(record.Vars, wanted.Vars)
}

// differentOrder refuses what is not the same. Of an instance of another tenant
// nothing is told but that the id is taken.
func differentOrder(record, wanted instance.Record) error {
	if record.Tenant == wanted.Tenant && record.IdempotencyKey == wanted.IdempotencyKey && wanted.IdempotencyKey != "" {
		return status.Errorf(codes.InvalidArgument, "idempotency_key: %q was used before, for instance %s with other parameters", wanted.IdempotencyKey, record.ID)
	}
	return status.Errorf(codes.AlreadyExists, "instance_id: %q was used before, with other parameters", record.ID)
}

// complete gives an order its id, and refuses one that cannot be carried out.
func (s *OperatorService) complete(record *instance.Record) error {
	group, found := s.Store.Get(record.Key())
	if !found {
		// Nothing is wrong with the request, and it may be right as soon as the
		// group is made. Internal, which servers have answered so far, says
		// nothing; NotFound is for instances (wire contract).
		return status.Errorf(codes.FailedPrecondition, "config.group: group %q does not exist", record.Group)
	}
	c := s.Store.Config()
	effective, err := provision.Effective(c, group, record)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "config of an instance of group %s: %v", group.Key, err)
	}
	problems := validatePools(c, group, effective)
	if record.ID != "" {
		problems = append(problems, validateID(record.ID, effective.Kind)...)
	}
	if len(problems) > 0 {
		return status.Errorf(codes.InvalidArgument, "instance of group %s: %v", group.Key, problems.ToAggregate())
	}
	if record.ID == "" {
		id, err := puidv7.New(effective.Kind)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		record.ID = id.String()
	}
	record.CreatedAt = time.Now()
	record.InfraConfigHash = group.InfraConfigHash
	return nil
}

// validatePools keeps orders to the pools that dynamic groups may use, except for
// those of the group: they are right whatever is ruled out for others.
func validatePools(c *config.Config, group, effective *groups.Group) field.ErrorList {
	allowed := c.Shard.DynamicSubnetPools
	if len(allowed) == 0 {
		return nil
	}
	var problems field.ErrorList
	for _, pool := range effective.SubnetPools {
		if !slices.Contains(group.SubnetPools, pool) && !slices.Contains(allowed, pool) {
			problems = append(problems, field.NotSupported(field.NewPath("config", "subnet_pool"), pool, allowed))
		}
	}
	return problems
}

// validateID checks an id that a caller chose: its prefix is the kind of the
// template (server document).
func validateID(text, kind string) field.ErrorList {
	path := field.NewPath("instance_id")
	id, err := puidv7.Parse(text)
	if err != nil {
		return field.ErrorList{field.Invalid(path, text, err.Error())}
	}
	if id.Prefix != kind {
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("must begin with %q, the kind of the template", kind))}
	}
	return nil
}
