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

// targetGroupARNs matches ARNs of target groups, with their partition, region and account.
var targetGroupARNs = regexp.MustCompile(`^arn:(aws[a-z-]*):elasticloadbalancing:([a-z0-9-]+):([0-9]{12}):targetgroup/[A-Za-z0-9-]{1,32}/[0-9a-f]{16}$`)

// aTargetGroupARN describes an ARN of a target group in error messages.
const aTargetGroupARN = "the ARN of a target group, such as arn:aws:elasticloadbalancing:us-west-2:123456789012:targetgroup/web/0123456789abcdef"

// balancerSettings are the fields of an entry of load_balancers, or of one of its parts.
type balancerSettings struct {
	// arns identify target groups. A part has one.
	arns []string
	// port is the port of the targets, nil for the port of each target group.
	port *int32
}

var _ provider.LoadBalancerOptions = (*Options)(nil)

// ReadLoadBalancer reads an entry of load_balancers.
func (*Options) ReadLoadBalancer(o *jsonc.Object) provider.LoadBalancerSettings {
	return balancerSettings{arns: o.Strings("target_group_arns"), port: o.Int32("port")}
}

// Parts returns the settings of each target group.
func (s balancerSettings) Parts() map[string]provider.LoadBalancerSettings {
	return provider.TargetGroupParts(s.arns, s.port, func(arn string) provider.LoadBalancerSettings {
		return balancerSettings{arns: []string{arn}, port: s.port}
	})
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
	return append(errs, provider.ValidatePort(path.Child("port"), s.port)...)
}

const (
	// targetBatch is the number of targets in a request. The API reference states no maximum
	// (https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_RegisterTargets.html).
	targetBatch = 100
	// codeInvalidTarget means that an instance does not exist, does not run, or is in another
	// VPC than the target group.
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

// balancerCall is a method of the SDK client for load balancers.
type balancerCall[Input, Output any] func(context.Context, *Input, ...func(*elb.Options)) (*Output, error)

// targetGroups calls the API for target groups. Like type calls, it must not contain the
// client.
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
		// The caller repeats requests.
		options.RetryMaxAttempts = 1
		options.Logger = logging.Nop{}
	})
	return &targetGroups{
		shard: c.shard, register: client.RegisterTargets, deregister: client.DeregisterTargets, describe: client.DescribeTargetHealth,
	}
}

// targetGroup is a target group, with the port at which targets are registered.
type targetGroup struct {
	arn string
	// port is nil for the port of the target group.
	port *int32
}

// targetGroup returns the target group of a part of a load balancer. It must be in the region
// of the shard, because the service of another region does not know it.
func (g *targetGroups) targetGroup(balancer provider.LoadBalancer) (targetGroup, error) {
	settings, ok := balancer.Settings.(balancerSettings)
	if !ok || len(settings.arns) != 1 {
		return targetGroup{}, fmt.Errorf("load balancer %s has no single target group", balancer.Key)
	}
	arn := settings.arns[0]
	if match := targetGroupARNs.FindStringSubmatch(arn); match == nil || match[2] != g.shard.Region {
		return targetGroup{}, fmt.Errorf("load balancer %s: %q is not the ARN of a target group in region %s", balancer.Key, arn, g.shard.Region)
	}
	return targetGroup{arn: arn, port: settings.port}, nil
}

// Register registers instances with a target group. The call repeats safely
// (https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_RegisterTargets.html).
func (g *targetGroups) Register(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	group, err := g.targetGroup(balancer)
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
	var errs []error
	for batch := range slices.Chunk(ids, targetBatch) {
		if err := deadline.Check(ctx); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if _, err := g.register(ctx, &elb.RegisterTargetsInput{TargetGroupArn: &group.arn, Targets: group.targets(batch)}); err != nil {
			errs = append(errs, fmt.Errorf("register %d instances with %s: %w", len(batch), group.arn, classify(err)))
		}
	}
	return errors.Join(errs...)
}

// Deregister begins to deregister instances from a target group.
func (g *targetGroups) Deregister(ctx context.Context, balancer provider.LoadBalancer, list []instance.VM) error {
	group, err := g.targetGroup(balancer)
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
	var errs []error
	for batch := range slices.Chunk(ids, targetBatch) {
		if err := deadline.Check(ctx); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, g.deregisterBatch(ctx, group, batch))
	}
	return errors.Join(errs...)
}

// deregisterBatch deregisters instances with one request. If the service refuses the request,
// it has not deregistered any of them. Then deregisterBatch separates the instances that the
// error names.
func (g *targetGroups) deregisterBatch(ctx context.Context, group targetGroup, ids []string) error {
	if err := deadline.Check(ctx); err != nil {
		return err
	}
	_, err := g.deregister(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &group.arn, Targets: group.targets(ids)})
	switch {
	case err == nil:
		return nil
	case codeOf(err) == codeInvalidTarget && len(ids) == 1:
		return nil // an instance that does not exist is no target
	case codeOf(err) == codeInvalidTarget:
		bad, others := splitNamed(err, ids)
		return errors.Join(g.deregisterBatch(ctx, group, bad), g.deregisterBatch(ctx, group, others))
	}
	return fmt.Errorf("deregister %d instances from %s: %w", len(ids), group.arn, classify(err))
}

// Targets lists the targets of a target group. The service reports the state of each target
// (https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html).
func (g *targetGroups) Targets(ctx context.Context, balancer provider.LoadBalancer) ([]provider.Target, error) {
	group, err := g.targetGroup(balancer)
	if err != nil {
		return nil, err
	}
	output, err := g.describe(ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: &group.arn})
	if err != nil {
		return nil, fmt.Errorf("list the targets of %s: %w", group.arn, classify(err))
	}
	states := map[string]provider.TargetState{}
	for _, health := range output.TargetHealthDescriptions {
		if health.Target == nil || awssdk.ToString(health.Target.Id) == "" || health.TargetHealth == nil || health.TargetHealth.State == "" {
			return nil, fmt.Errorf("list the targets of %s: the response has a target without id or state", group.arn)
		}
		switch id := *health.Target.Id; {
		case group.port != nil && awssdk.ToInt32(health.Target.Port) != *group.port:
			// Another part, or another client, has registered it.
		case health.TargetHealth.Reason == types.TargetHealthReasonEnumNotRegistered:
		case health.TargetHealth.State != types.TargetHealthStateEnumDraining:
			states[id] = provider.Registered
		default:
			// The instance may also be registered at another port.
			if _, known := states[id]; !known {
				states[id] = provider.Draining
			}
		}
	}
	var list []provider.Target
	for _, id := range slices.Sorted(maps.Keys(states)) {
		target := provider.Target{State: states[id]}
		// Addresses, functions and load balancers can be targets, too.
		if instances.MatchString(id) {
			target.ProviderID = providerID(g.shard.Zone, id)
		}
		list = append(list, target)
	}
	return list, nil
}

// targets returns instances as targets of the group.
func (g targetGroup) targets(ids []string) []types.TargetDescription {
	list := make([]types.TargetDescription, len(ids))
	for n := range ids {
		list[n] = types.TargetDescription{Id: &ids[n], Port: g.port}
	}
	return list
}
