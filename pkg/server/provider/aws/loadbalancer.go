// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
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
