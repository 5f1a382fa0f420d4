// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// CreateInstance creates one on-demand instance, which does not count in the size
// of its group. The call returns when the record is stored; the reconciler creates
// the instance.
//
// A request with an id or an idempotency key that the client's tenant used before
// returns the existing instance, also after it or its group was deleted, for as
// long as the server has its record. The parameters must be the same: otherwise a
// reused key is InvalidArgument and a reused id is AlreadyExists. A request with
// neither may have created an instance although it returns Unavailable.
//
// If the provider has no capacity for a first request, or the tenant has reached a limit of
// on-demand instances, the call returns ResourceExhausted with ReasonOutOfCapacity, and has
// no effect.
func (s *OperatorService) CreateInstance(ctx context.Context, request *nstancev1.CreateInstanceRequest) (*nstancev1.CreateInstanceResponse, error) {
	logger := klog.FromContext(ctx)
	wanted := newRecord(clientFrom(ctx).Tenant, request)
	logger.V(2).Info("Received create request for an instance", "group", wanted.Group, "instance", wanted.ID)
	if request.GetConfig() == nil {
		return nil, status.Error(codes.InvalidArgument, "config: Required value")
	}
	if wanted.Group == "" {
		return nil, status.Error(codes.InvalidArgument, "config.group: Required value")
	}
	if err := groups.ValidateKey(wanted.Key()); err != nil {
		return nil, toStatus(err)
	}
	key := requestKeyOf(wanted)
	defer s.createRequests.lock(key)()
	if existing, found := s.existing(wanted); found {
		return existingResponse(existing, wanted)
	}

	record, unconfirmed := s.createRequests.unconfirmedRecord(key)
	switch {
	case !unconfirmed:
		if err := s.complete(&wanted); err != nil {
			return nil, err
		}
		release, err := s.reserve(&wanted)
		if err != nil {
			logger.Info("Declined create request, the tenant has reached a limit", "group", wanted.Group, "reason", err.Error())
			return nil, err
		}
		defer release()
		if err := s.checkCapacity(&wanted); err != nil {
			logger.Info("Declined create request, the provider has no capacity", "group", wanted.Group, "reason", err.Error())
			return nil, err
		}
		record = wanted
	case !sameParameters(record, wanted):
		return nil, parametersError(record, wanted)
	}
	err := s.Instances.Add(ctx, record)
	s.createRequests.done(key, record, err)
	if errors.Is(err, instancestore.ErrExists) {
		// Two concurrent requests had the same id and different keys, or the id is
		// in the storage but not in memory.
		if existing, found := s.Instances.Get(record.ID); found {
			return existingResponse(existing, wanted)
		}
		return nil, status.Errorf(codes.AlreadyExists, "instance_id: %q was used before", record.ID)
	}
	if err != nil {
		logger.Error(err, "Instance was not created", "instance", record.ID, "group", record.Group)
		return nil, toStatus(err)
	}
	logger.Info("Creating on-demand instance", "instance", record.ID, "group", record.Group)
	s.Changed(record.Key())
	return &nstancev1.CreateInstanceResponse{InstanceId: record.ID, Status: instanceStatus(&instance.Instance{Record: record})}, nil
}

// newRecord returns the fields of a record that a request sets. The method
// complete sets the others.
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
		LoadBalancers:  config.GetLoadBalancers(),
	}
}

// existing returns the instance that an earlier request with the same idempotency
// key or id created.
func (s *OperatorService) existing(wanted instance.Record) (instance.Instance, bool) {
	if wanted.IdempotencyKey != "" {
		if i, found := s.Instances.ByIdempotencyKey(wanted.Tenant, wanted.IdempotencyKey); found {
			return i, true
		}
	}
	return s.Instances.Get(wanted.ID)
}

// existingResponse returns the response to a request whose instance exists.
func existingResponse(existing instance.Instance, wanted instance.Record) (*nstancev1.CreateInstanceResponse, error) {
	if !sameParameters(existing.Record, wanted) {
		return nil, parametersError(existing.Record, wanted)
	}
	return &nstancev1.CreateInstanceResponse{InstanceId: existing.ID, Status: instanceStatus(&existing)}, nil
}

// sameParameters reports whether wanted has the parameters that record was created
// with, as far as they are known.
func sameParameters(record, wanted instance.Record) bool {
	return record.OnDemand && record.Key() == wanted.Key() &&
		record.IdempotencyKey == wanted.IdempotencyKey &&
		(wanted.ID == "" || record.ID == wanted.ID) &&
		(record.Adopted || sameOverrides(record, wanted))
}

func sameOverrides(record, wanted instance.Record) bool {
	return record.Template == wanted.Template &&
		record.InstanceType == wanted.InstanceType &&
		record.SubnetPool == wanted.SubnetPool &&
		maps.Equal(record.Vars, wanted.Vars) &&
		slices.Equal(record.LoadBalancers, wanted.LoadBalancers)
}

// parametersError returns the error for a reused key or id. About an instance of
// another tenant it reveals only that the id is in use.
func parametersError(record, wanted instance.Record) error {
	if record.Tenant == wanted.Tenant && record.IdempotencyKey == wanted.IdempotencyKey && wanted.IdempotencyKey != "" {
		return status.Errorf(codes.InvalidArgument, "idempotency_key: %q was used before, for instance %s with other parameters", wanted.IdempotencyKey, record.ID)
	}
	return status.Errorf(codes.AlreadyExists, "instance_id: %q was used before, with other parameters", record.ID)
}

// complete validates a record and sets the fields that the server determines.
func (s *OperatorService) complete(record *instance.Record) error {
	group, found := s.Store.Get(record.Key())
	if !found {
		// The request is valid and may succeed as soon as the group exists, so
		// neither InvalidArgument nor Internal fits. NotFound is for instances
		// (docs/protocol.md#errors).
		return status.Errorf(codes.FailedPrecondition, "config.group: group %q does not exist", record.Group)
	}
	c := s.Store.Config()
	if problems := validateAllowed(c, group, record); len(problems) > 0 {
		return status.Errorf(codes.InvalidArgument, "instance of group %s: %v", group.Key, problems.ToAggregate())
	}
	effective, err := provision.Effective(c, group, record)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "config of an instance of group %s: %v", group.Key, err)
	}
	problems := validatePools(c, group, effective)
	problems = append(problems, groups.ValidateVars(field.NewPath("config", "vars"), record.Vars)...)
	if len(record.IdempotencyKey) > maxIdempotencyKey {
		problems = append(problems, field.TooLong(field.NewPath("idempotency_key"), "", maxIdempotencyKey))
	}
	if record.ID != "" {
		problems = append(problems, validateID(record.ID, effective.Kind, c.Shard.GarbageCollection.DeletedRecordRetention)...)
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

// validateAllowed checks that the tenant may use the template of the record, and that the limits
// of the group allow an on-demand instance with the settings of the record.
func validateAllowed(c *config.Config, group *groups.Group, record *instance.Record) field.ErrorList {
	path := field.NewPath("config")
	template := cmp.Or(record.Template, group.Template)
	if template != group.Template {
		if err := c.CheckTemplateOf(path.Child("template"), record.Tenant, template); err != nil {
			return field.ErrorList{err}
		}
	}
	// Another template does not open a group that has no on-demand instances.
	if !*c.SettingLimits(record.Tenant, record.Group, group.Template).OnDemand || !ptr.Deref(c.Templates[template].Limits.OnDemand, true) {
		return field.ErrorList{field.Forbidden(path.Child("group"), fmt.Sprintf("group %q has no on-demand instances: limits.on_demand of the server's configuration allows them", record.Group))}
	}
	limits := c.SettingLimits(record.Tenant, record.Group, template)
	var problems field.ErrorList
	if record.InstanceType != "" && record.InstanceType != group.InstanceType {
		problems = append(problems, config.CheckAllowed(path.Child("instance_type"), record.InstanceType, "instance_types", limits.InstanceTypes)...)
	}
	if record.SubnetPool != "" && !slices.Contains(group.SubnetPools, record.SubnetPool) {
		problems = append(problems, config.CheckAllowed(path.Child("subnet_pool"), record.SubnetPool, "subnet_pools", limits.SubnetPools)...)
	}
	loadBalancers := group.LoadBalancers
	if template != group.Template {
		loadBalancers = c.Templates[template].LoadBalancers
	}
	problems = append(problems, groups.ValidateLoadBalancers(c, path.Child("load_balancers"), limits.LoadBalancers, loadBalancers, record.LoadBalancers)...)
	vars := maps.Clone(record.Vars)
	problems = append(problems, takePodVars(path.Child("vars"), vars)...)
	return append(problems, groups.ValidateVarChanges(path.Child("vars"), limits.Vars, group.Vars, vars)...)
}

// podVars are the vars that operators send for a Pod (docs/on-demand.md). No limit has to name
// them, so their values must be names.
var podVars = []string{"pod_namespace", "pod_name", "pod_uid"}

// takePodVars checks podVars and removes them from vars.
func takePodVars(path *field.Path, vars map[string]string) field.ErrorList {
	var problems field.ErrorList
	for _, name := range podVars {
		for _, message := range validation.IsDNS1123Subdomain(cmp.Or(vars[name], "none")) {
			problems = append(problems, field.Invalid(path.Key(name), vars[name], message))
		}
		delete(vars, name)
	}
	return problems
}

// validatePools allows only the subnet pools for dynamic groups and the pools of the
// instance's own group.
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

// validateID checks an id that a client chose: its prefix must be the kind of the
// template (docs/server.md#instance-ids). The id of an instance that was deleted is known for
// retention only, so an id that is older is not accepted, and neither is an id that would be
// accepted for longer because its time is in the future.
func validateID(text, kind string, retention time.Duration) field.ErrorList {
	path := field.NewPath("instance_id")
	id, err := puidv7.Parse(text)
	if err != nil {
		return field.ErrorList{field.Invalid(path, text, err.Error())}
	}
	if id.Prefix != kind {
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("must begin with %q, the kind of the template", kind))}
	}
	if retention == 0 {
		return nil
	}
	// Between its creation and its deletion an instance may be that much younger than its id.
	ahead := min(maxAhead, retention/2)
	age, oldest := time.Since(id.Time()), retention-ahead
	switch {
	case age > oldest:
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("is older than %s, and may be that of a deleted instance: make a new one", oldest))}
	case -age > ahead:
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("is dated %s later than the clock of the server, and may be at most %s: correct the clock that has made it",
			-age.Round(time.Second), ahead))}
	}
	return nil
}

// maxAhead is how far the clock of a client that chooses an id may be ahead of the server's clock.
const maxAhead = 5 * time.Minute

// checkCapacity declines a new on-demand instance that the provider would reject at present:
// another shard may have capacity. It is called only before a record may exist, because a
// request that may have been accepted must be accepted again.
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
	variants := []*groups.Group{effective}
	if provision.UsesCandidates(group, record) {
		variants = nil
		for _, v := range group.Variants {
			if ptr.Deref(v.Max, 1) > 0 {
				variants = append(variants, effective.As(v))
			}
		}
	}
	var lack error
	for _, variant := range variants {
		spec := provision.Common(variant)
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
	}
	if lack == nil {
		return nil
	}
	return outOfCapacity("instance of group %s: %v", record.Group, lack)
}

// outOfCapacity returns the status for a request that another shard may accept, and this shard
// at another time. The request has had no effect.
func outOfCapacity(format string, args ...any) error {
	return withReason(codes.ResourceExhausted, fmt.Sprintf(format, args...), nstancev1.ReasonOutOfCapacity, nil).Err()
}
