// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/aws/smithy-go/logging"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// targetGroupARNs are ARNs of target groups, with their partition, region and account.
var targetGroupARNs = regexp.MustCompile(`^arn:(aws[a-z-]*):elasticloadbalancing:([a-z0-9-]+):([0-9]{12}):targetgroup/[A-Za-z0-9-]{1,32}/[0-9a-f]{16}$`)

// aTargetGroupARN describes an ARN of a target group.
const aTargetGroupARN = "the ARN of a target group, such as arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/web/0123456789abcdef"

// balancerSettings are the fields of an entry of load_balancers.
type balancerSettings struct {
	// arns are those of the target groups.
	arns []string
	// port is that of the targets, nil for that of each target group.
	port *int32
}

var _ provider.LoadBalancerOptions = (*Options)(nil)

// ReadLoadBalancer reads an entry of load_balancers.
func (*Options) ReadLoadBalancer(o *jsonc.Object) provider.LoadBalancerSettings {
	return balancerSettings{arns: o.Strings("target_group_arns"), port: o.Int32("port")}
}

// Parts returns the target groups, each with the port: a target is one of a target group and
// a port.
func (s balancerSettings) Parts() map[string]provider.LoadBalancerSettings {
	parts := map[string]provider.LoadBalancerSettings{}
	for _, arn := range s.arns {
		name := arn
		if s.port != nil {
			name += fmt.Sprintf(" port %d", *s.port)
		}
		parts[name] = balancerSettings{arns: []string{arn}, port: s.port}
	}
	return parts
}

// Validate requires target groups of one region and account.
func (s balancerSettings) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	list := path.Child("target_group_arns")
	if len(s.arns) == 0 {
		errs = append(errs, field.Required(list, "must have "+aTargetGroupARN))
	}
	for n, arn := range s.arns {
		first, match := targetGroupARNs.FindStringSubmatch(s.arns[0]), targetGroupARNs.FindStringSubmatch(arn)
		switch {
		case match == nil:
			errs = append(errs, field.Invalid(list.Index(n), arn, "must be "+aTargetGroupARN))
		case slices.Contains(s.arns[:n], arn):
			errs = append(errs, field.Duplicate(list.Index(n), arn))
		case first != nil && !slices.Equal(match[1:], first[1:]):
			errs = append(errs, field.Invalid(list.Index(n), arn, "must have the region and the account of the others"))
		}
	}
	if s.port != nil && (*s.port < 1 || *s.port > 65535) {
		errs = append(errs, field.Invalid(path.Child("port"), *s.port, "must be between 1 and 65535"))
	}
	return errs
}

const (
	// targetBatch is how many targets a call may have. The documentation has no limit.
	targetBatch = 100
	// codeInvalidTarget means that an instance does not exist, does not run, or is in
	// another network than the target group.
	codeInvalidTarget = "InvalidTarget"
)

// Provider is the provider of the instances of one shard, which can be targets of target
// groups of Elastic Load Balancing.
type Provider struct {
	*cloud.Provider
	*targetGroups
}

var (
	_ provider.Provider      = (*Provider)(nil)
	_ provider.Expecter      = (*Provider)(nil)
	_ provider.LoadBalancers = (*Provider)(nil)
)

// balancerCall is one of the calls of the SDK for load balancers.
type balancerCall[Input, Output any] func(context.Context, *Input, ...func(*elb.Options)) (*Output, error)

// targetGroups are the calls for target groups. As with calls, there is no client in it.
type targetGroups struct {
	shard      provider.Shard
	register   balancerCall[elb.RegisterTargetsInput, elb.RegisterTargetsOutput]
	deregister balancerCall[elb.DeregisterTargetsInput, elb.DeregisterTargetsOutput]
	describe   balancerCall[elb.DescribeTargetHealthInput, elb.DescribeTargetHealthOutput]
}

func (c connection) newTargetGroups(o *Options) *targetGroups {
	client := elb.NewFromConfig(c.sdk, func(options *elb.Options) {
		if o.LoadBalancerEndpoint != "" {
			options.BaseEndpoint = awssdk.String(o.LoadBalancerEndpoint)
		}
		options.HTTPClient = c.client(options.HTTPClient)
		// The caller repeats calls.
		options.RetryMaxAttempts = 1
		options.Logger = logging.Nop{}
	})
	return &targetGroups{
		shard: c.shard, register: client.RegisterTargets, deregister: client.DeregisterTargets, describe: client.DescribeTargetHealth,
	}
}

// Register registers instances with all target groups of an entry.
func (g *targetGroups) Register(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	settings, err := g.settings(balancer)
	if err != nil {
		return err
	}
	var ids []string
	for _, vm := range list {
		id, err := instanceID(vm.ProviderID)
		if err != nil {
			return fmt.Errorf("register instance %s: %w", vm.ID, err)
		}
		ids = append(ids, id)
	}
	return settings.each(ctx, ids, func(arn string, ids []string) error {
		_, err := g.register(ctx, &elb.RegisterTargetsInput{TargetGroupArn: &arn, Targets: settings.targets(ids)})
		if err != nil {
			return fmt.Errorf("register %d instances with %s: %w", len(ids), arn, classify(err))
		}
		return nil
	})
}

// Deregister begins to deregister instances from all target groups of an entry.
func (g *targetGroups) Deregister(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	settings, err := g.settings(balancer)
	if err != nil {
		return err
	}
	var ids []string
	for _, vm := range list {
		if vm.ProviderID == "" {
			continue // was never registered
		}
		id, err := instanceID(vm.ProviderID)
		if err != nil {
			return fmt.Errorf("deregister instance %s: %w", vm.ID, err)
		}
		ids = append(ids, id)
	}
	return settings.each(ctx, ids, func(arn string, ids []string) error { return g.deregisterAll(ctx, settings, arn, ids) })
}

// deregisterAll deregisters instances from one target group. If the service refuses a call
// because of some of them, it has deregistered none.
func (g *targetGroups) deregisterAll(ctx context.Context, settings balancerSettings, arn string, ids []string) error {
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	_, err := g.deregister(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &arn, Targets: settings.targets(ids)})
	switch {
	case err == nil:
		return nil
	case codeOf(err) == codeInvalidTarget && len(ids) == 1:
		return nil // what does not exist is no target
	case codeOf(err) == codeInvalidTarget:
		bad, others := named(err, ids)
		return errors.Join(g.deregisterAll(ctx, settings, arn, bad), g.deregisterAll(ctx, settings, arn, others))
	}
	return fmt.Errorf("deregister %d instances from %s: %w", len(ids), arn, classify(err))
}

// Targets lists the targets of all target groups of an entry.
func (g *targetGroups) Targets(ctx context.Context, balancer provider.LoadBalancer) ([]provider.Target, error) {
	settings, err := g.settings(balancer)
	if err != nil {
		return nil, err
	}
	all := map[string]membership{}
	for _, arn := range settings.arns {
		output, err := g.describe(ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: &arn})
		if err != nil {
			return nil, fmt.Errorf("list the targets of %s: %w", arn, classify(err))
		}
		registered, draining := map[string]bool{}, map[string]bool{}
		for _, one := range output.TargetHealthDescriptions {
			if one.Target == nil || awssdk.ToString(one.Target.Id) == "" || one.TargetHealth == nil || one.TargetHealth.State == "" {
				return nil, fmt.Errorf("list the targets of %s: the response has a target without id or state", arn)
			}
			switch id := *one.Target.Id; {
			case settings.port != nil && awssdk.ToInt32(one.Target.Port) != *settings.port:
				// Another entry, or another client, has registered it.
			case one.TargetHealth.Reason == types.TargetHealthReasonEnumNotRegistered:
			case one.TargetHealth.State == types.TargetHealthStateEnumDraining:
				draining[id] = true
			default:
				registered[id] = true
			}
		}
		for id := range draining {
			m := all[id]
			m.draining++
			all[id] = m
		}
		for id := range registered {
			m := all[id]
			m.registered++
			all[id] = m
		}
	}
	var list []provider.Target
	for _, id := range slices.Sorted(maps.Keys(all)) {
		target := provider.Target{State: all[id].state(len(settings.arns))}
		// Addresses, functions and load balancers can be targets, too.
		if instances.MatchString(id) {
			target.ProviderID = providerID(g.shard.Zone, id)
		}
		list = append(list, target)
	}
	return list, nil
}

// membership counts the target groups that have a target.
type membership struct{ registered, draining int }

func (m membership) state(groups int) provider.TargetState {
	switch m.registered {
	case 0:
		return provider.Draining
	case groups:
		return provider.Registered
	}
	return provider.Partial
}

// settings returns the fields of an entry, if its target groups are in the region of the
// shard: another one does not know them.
func (g *targetGroups) settings(balancer provider.LoadBalancer) (balancerSettings, error) {
	settings, ok := balancer.Settings.(balancerSettings)
	if !ok || len(settings.arns) == 0 {
		return balancerSettings{}, fmt.Errorf("load balancer %s has no target groups", balancer.Key)
	}
	for _, arn := range settings.arns {
		if match := targetGroupARNs.FindStringSubmatch(arn); match == nil || match[2] != g.shard.Region {
			return balancerSettings{}, fmt.Errorf("load balancer %s: %q is not the ARN of a target group in region %s", balancer.Key, arn, g.shard.Region)
		}
	}
	return settings, nil
}

// each calls do for batches of ids with each target group. A target group for which that
// fails does not keep the others.
func (s balancerSettings) each(ctx context.Context, ids []string, do func(arn string, ids []string) error) error {
	var errs []error
	for _, arn := range s.arns {
		for batch := range slices.Chunk(ids, targetBatch) {
			if err := deadline.Check(ctx); err != nil {
				return errors.Join(append(errs, err)...)
			}
			if err := do(arn, batch); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// targets returns instances as targets.
func (s balancerSettings) targets(ids []string) []types.TargetDescription {
	list := make([]types.TargetDescription, len(ids))
	for n := range ids {
		list[n] = types.TargetDescription{Id: &ids[n], Port: s.port}
	}
	return list
}
