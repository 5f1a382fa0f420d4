// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// addCandidates adds up the candidates that the shards of a pool report.
func (p *Pool) addCandidates(pool *v1beta1.NstanceMachinePool, groups []*v1beta1.NstanceShardGroup) {
	if len(pool.Spec.Candidates) == 0 {
		return
	}
	p.Preferred = string(metav1.ConditionUnknown)
	if preferred := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionPreferredInstances); preferred != nil {
		p.Preferred = string(preferred.Status)
	}
	for _, group := range groups {
		if len(group.Status.Candidates) == 0 {
			p.CandidatesUnknown = append(p.CandidatesUnknown, string(group.Spec.Shard))
		}
	}
	for _, candidate := range pool.Spec.Candidates {
		found := p.reportedAs(candidate, groups)
		if len(found) == 0 {
			found = []Candidate{{Name: string(candidate.Name), Type: string(candidate.InstanceType), Market: string(candidate.Market)}}
		}
		if candidate.MaxReplicas != nil {
			for i := range found {
				found[i].Max = candidate.MaxReplicas.String()
			}
		}
		p.Candidates = append(p.Candidates, found...)
	}
}

// reportedAs returns a candidate as shards report it, by type and market.
func (p *Pool) reportedAs(candidate v1beta1.Candidate, groups []*v1beta1.NstanceShardGroup) (found []Candidate) {
	for _, group := range groups {
		for _, use := range group.Status.Candidates {
			if use.Name != string(candidate.Name) {
				continue
			}
			at := slices.IndexFunc(found, func(c Candidate) bool { return c.Type == use.InstanceType && c.Market == use.Market })
			if at < 0 {
				at = len(found)
				found = append(found, Candidate{Name: use.Name, Type: use.InstanceType, Market: use.Market})
			}
			found[at].Instances += use.Replicas
			if use.Unavailable != "" {
				found[at].Unavailable = append(found[at].Unavailable, fmt.Sprintf("%s: %s", group.Spec.Shard, use.Unavailable))
			}
		}
	}
	return found
}

// Kind returns the instance type and the market, as far as they are known.
func (c *Candidate) Kind() string { return cmp.Or(strings.TrimSpace(c.Type+" "+c.Market), c.Name) }

// printCandidates writes the candidates of the pools that have some.
func printCandidates(w io.Writer, status Status, options PrintOptions) error {
	table := NewTable(options, Column{Name: "POOL"}, Column{Name: "PREFERRED"}, Column{Name: "CANDIDATE"}, Column{Name: "TYPE"}, Column{Name: "MARKET"},
		Column{Name: "INSTANCES"}, Column{Name: "MAX"}, Column{Name: "UNAVAILABLE"})
	var notes []string
	for i := range status.Pools {
		pool := &status.Pools[i]
		name, preferred := pool.Name, pool.Preferred
		if severalNamespaces(status) {
			name = pool.Namespace + "/" + name
		}
		if len(pool.CandidatesUnknown) > 0 {
			notes = append(notes, fmt.Sprintf("unknown: pool %s: no numbers from %s", name, strings.Join(pool.CandidatesUnknown, ", ")))
		}
		for _, candidate := range pool.Candidates {
			table.Add(name, preferred, candidate.Name, cmp.Or(candidate.Type, "<template>"), cmp.Or(candidate.Market, "<none>"),
				number(&candidate.Instances), cmp.Or(candidate.Max, "<none>"), cmp.Or(strings.Join(candidate.Unavailable, "; "), "<none>"))
			name, preferred = "", ""
		}
	}
	if table.Empty() {
		return nil
	}
	fmt.Fprintln(w, "\nCANDIDATES")
	if err := table.Print(w); err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(w, note)
	}
	return nil
}
