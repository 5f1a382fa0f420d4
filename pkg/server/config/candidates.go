// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/candidates"
	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
)

// Keys of templates and groups.
const (
	candidatesKey  = "candidates"
	returnAfterKey = "return_after"
)

// readCandidates returns nil without candidates: an empty list is a missing list.
func readCandidates(o *jsonc.Object) []candidates.Candidate {
	var list []candidates.Candidate
	for _, o := range o.Objects(candidatesKey) {
		list = append(list, candidates.Candidate{
			Name: o.String("name"), InstanceType: o.String("instance_type"), Market: o.String("market"), MaxInstances: o.Int32("max_instances"),
		})
		o.Finish()
	}
	return list
}

// readReturnAfter returns the seconds of a duration, rounded up.
func readReturnAfter(o *jsonc.Object) int32 {
	seconds := (o.Duration(returnAfterKey, 0) + time.Second - 1) / time.Second
	return int32(min(seconds, math.MaxInt32))
}

// CheckCandidates returns an error for each type and market at path that the provider does not have
// with an architecture and arguments.
func (c *Config) CheckCandidates(path *field.Path, list []candidates.Candidate, arch string, args map[string]any) field.ErrorList {
	var errs field.ErrorList
	for n, candidate := range list {
		path := path.Index(n)
		if candidate.InstanceType != "" {
			if err := c.CheckInstanceType(path.Child("instance_type"), candidate.InstanceType, arch); err != nil {
				errs = append(errs, err)
			}
		}
		if c.Shard.Infra.Options == nil {
			continue // an unknown provider has its own error
		}
		if _, err := provider.MarketArgs(c.Shard.Infra.Options, args, candidate.Market); err != nil {
			errs = append(errs, marketError(path, candidate.Market, err))
		}
	}
	return errs
}

// marketError returns the error of a market with the path in its candidate. An error in the arguments,
// which the market would replace, keeps its text.
func marketError(path *field.Path, market string, err error) *field.Error {
	if of, ok := errors.AsType[*field.Error](err); ok && of.Field == "market" {
		located := *of
		located.Field = path.Child("market").String()
		return &located
	}
	return field.Invalid(path.Child("market"), market, err.Error())
}

// validateGroupCandidates checks the candidates of a static group. An instance type of its own would
// take the place of the template's candidates, and has no use beside candidates of its own.
func (c *Config) validateGroupCandidates(path *field.Path, group Group) field.ErrorList {
	template := c.Templates[group.Template]
	list := group.Candidates
	if len(list) == 0 && group.InstanceType == "" {
		list = template.Candidates
	}
	errs := candidates.Validate(path.Child(candidatesKey), group.Candidates)
	// What is wrong in the template is reported there.
	checked := path.Child(candidatesKey)
	if len(group.Candidates) > 0 || len(c.CheckCandidates(checked, list, template.Arch, MergeArgs(c.Defaults.Args, template.Args))) == 0 {
		errs = append(errs, c.CheckCandidates(checked, list, template.Arch, MergeArgs(c.Defaults.Args, template.Args, group.Args))...)
	}
	errs = append(errs, candidates.ValidateReturn(path.Child(returnAfterKey), group.ReturnAfterSeconds, list)...)
	if group.InstanceType != "" && len(group.Candidates) > 0 {
		errs = append(errs, field.Forbidden(path.Child("instance_type"), fmt.Sprintf("cannot be set together with candidates: a candidate has its own, or that of the template, %q", cmp.Or(template.InstanceType, "none"))))
	}
	return errs
}
