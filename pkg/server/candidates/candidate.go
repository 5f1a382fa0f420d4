// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package candidates decides of which instance type and market the instances of a group are
// (docs/server.md#candidates). Its functions are pure: they depend on what is observed, and the choice
// is stored nowhere but in the hash of each instance.
package candidates

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// MaxCandidates is the largest number of candidates of a group.
	MaxCandidates = 16
	// MinReturnAfterSeconds is the smallest time after which instances return to a better candidate,
	// in seconds. Instances of a group move no more often.
	MinReturnAfterSeconds = 600
)

// Candidate is an instance type in a market. The best candidate of a group is the first.
type Candidate struct {
	// Name is unique in the group. Status, events and metrics have it.
	Name string `json:"name"`
	// InstanceType is empty for the instance type of the group without candidates.
	InstanceType string `json:"instance_type,omitempty"`
	// Market is empty for the market that the arguments of the group mean.
	Market string `json:"market,omitempty"`
	// MaxInstances is how many managed instances of the group may be of the candidate, nil for no
	// limit.
	MaxInstances *int32 `json:"max_instances,omitempty"`
}

// Equal reports whether two candidates are the same.
func (c Candidate) Equal(other Candidate) bool {
	sameMax := c.MaxInstances == nil && other.MaxInstances == nil ||
		c.MaxInstances != nil && other.MaxInstances != nil && *c.MaxInstances == *other.MaxInstances
	return c.Name == other.Name && c.InstanceType == other.InstanceType && c.Market == other.Market && sameMax
}

// Equal reports whether two lists are the same, in the same order.
func Equal(a, b []Candidate) bool { return slices.EqualFunc(a, b, Candidate.Equal) }

// Validate returns every rule that a list breaks, but for types and markets, which the configuration
// knows.
func Validate(path *field.Path, list []Candidate) field.ErrorList {
	if len(list) > MaxCandidates {
		return field.ErrorList{field.TooMany(path, len(list), MaxCandidates)}
	}
	var problems field.ErrorList
	for n, c := range list {
		path := path.Index(n)
		switch {
		case c.Name == "":
			problems = append(problems, field.Required(path.Child("name"), "must be a name that no other candidate has"))
		case slices.ContainsFunc(list[:n], func(other Candidate) bool { return other.Name == c.Name }):
			problems = append(problems, field.Duplicate(path.Child("name"), c.Name))
		default:
			for _, message := range validation.IsDNS1123Label(c.Name) {
				problems = append(problems, field.Invalid(path.Child("name"), c.Name, message))
			}
		}
		switch most := c.MaxInstances; {
		case most == nil:
		case *most < 0:
			problems = append(problems, field.Invalid(path.Child("max_instances"), *most, "must not be negative"))
		case n == len(list)-1:
			problems = append(problems, field.Forbidden(path.Child("max_instances"), "the last candidate has no maximum, because each instance must be of a candidate"))
		}
	}
	return problems
}

// ValidateReturn returns every rule that the time after which instances return breaks. Zero means
// never.
func ValidateReturn(path *field.Path, seconds int32, list []Candidate) field.ErrorList {
	switch {
	case seconds == 0:
		return nil
	case seconds < MinReturnAfterSeconds:
		return field.ErrorList{field.Invalid(path, seconds, fmt.Sprintf("must be at least %d seconds", MinReturnAfterSeconds))}
	case len(list) == 0:
		return field.ErrorList{field.Forbidden(path, "needs candidates")}
	}
	return nil
}
