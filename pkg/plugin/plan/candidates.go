// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// newCandidates is the effect of candidates that replace no instance.
const newCandidates = "new instances only; no instance is replaced"

// candidatesEffect returns what other candidates do to instances that run. Only the instances of a
// candidate are replaced whose instance type or market is no longer in the list: adding and reordering
// candidates, and other names and maxima, replace none. With returnAfterSeconds instances follow the
// new list later.
func candidatesEffect(before, after *v1beta1.NstanceMachinePoolSpec) (text string, replaces bool) {
	var removed []string
	for _, was := range candidatesOf(before) {
		if !slices.ContainsFunc(candidatesOf(after), func(is v1beta1.Candidate) bool { return is.InstanceType == was.InstanceType && is.Market == was.Market }) {
			removed = append(removed, kindOf(was))
		}
	}
	if len(removed) > 0 {
		// The type or market of the template may be what a candidate says, which only the shards know.
		unless := ""
		if len(before.Candidates) == 0 || len(after.Candidates) == 0 || slices.ContainsFunc(slices.Concat(before.Candidates, after.Candidates), leavesToTemplate) {
			unless = ", unless a candidate means the same with the values of the template"
		}
		return fmt.Sprintf("each shard replaces its instances of %s, one at a time or as spec.rotation says%s; others stay", strings.Join(removed, ", "), unless), true
	}
	if after.ReturnAfterSeconds > 0 {
		return newCandidates + " at once; those that are not preferred are replaced later, as returnAfterSeconds and spec.rotation say", false
	}
	return newCandidates, false
}

func leavesToTemplate(candidate v1beta1.Candidate) bool {
	return candidate.InstanceType == "" || candidate.Market == ""
}

// candidatesOf returns the candidates of a pool. An instance type is a list of one.
func candidatesOf(spec *v1beta1.NstanceMachinePoolSpec) []v1beta1.Candidate {
	if len(spec.Candidates) > 0 {
		return spec.Candidates
	}
	return []v1beta1.Candidate{{InstanceType: v1beta1.InstanceType(spec.InstanceType)}}
}

// kindOf returns the instance type and the market of a candidate, with its name if it has one.
func kindOf(candidate v1beta1.Candidate) string {
	kind := strings.TrimSpace(cmp.Or(string(candidate.InstanceType), "the type of the template") + " " + string(candidate.Market))
	if candidate.Name == "" {
		return kind
	}
	return fmt.Sprintf("%s (%s)", candidate.Name, kind)
}

// changesCandidates reports whether the plan changes the order in which surplus instances leave.
func (p *Plan) changesCandidates() bool {
	return slices.ContainsFunc(p.Changes, func(change Change) bool { return change.Setting == "candidates" })
}
