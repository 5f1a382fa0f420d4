// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Facts are the settings as templates of userdata see them (docs/server-reference.md#nodes).
type Facts struct {
	// Labels are all labels, also those that a kubelet may not set.
	Labels map[string]string
	Taints []Taint
	// MaxPods is the maximum number of Pods, "" if it is left to the kubelet.
	MaxPods string
}

// Facts returns the settings for templates. Lists and maps are not nil, so that toJSON writes empty ones.
func (s Settings) Facts() Facts {
	facts := Facts{Labels: map[string]string{}, Taints: []Taint{}}
	maps.Copy(facts.Labels, s.Labels)
	facts.Taints = append(facts.Taints, s.Taints...)
	if s.MaxPods > 0 {
		facts.MaxPods = strconv.FormatInt(int64(s.MaxPods), 10)
	}
	return facts
}

// LabelsArg returns the labels that a kubelet may set, as --node-labels has them: "a=b,c=d", sorted by
// key, "" without any. A kubelet with any other label does not start, so that these are left out.
func (f Facts) LabelsArg() string {
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(f.Labels)) {
		if kubeletMaySet(key) {
			labels = append(labels, key+"="+f.Labels[key])
		}
	}
	return strings.Join(labels, ",")
}

// TaintsArg returns the taints as --register-with-taints has them: "key=value:NoSchedule,…", sorted, ""
// without any. Others are lists of the same form, such as a var: a taint in them is left out if the
// settings have one with its key and effect, because an API server rejects a Node with both.
func (f Facts) TaintsArg(others ...string) string {
	names := map[string]bool{}
	var taints []string
	for _, taint := range f.Taints {
		names[taint.Key+":"+taint.Effect] = true
		taints = append(taints, taint.Key+"="+taint.Value+":"+taint.Effect)
	}
	slices.Sort(taints)
	for _, other := range others {
		for text := range strings.SplitSeq(other, ",") {
			if text != "" && !names[taintName(text)] {
				taints = append(taints, text)
			}
		}
	}
	return strings.Join(taints, ",")
}

// taintName returns key and effect of a taint, key:effect, that is key=value:effect or key:effect.
func taintName(text string) string {
	rest, effect, _ := strings.Cut(text, ":")
	key, _, _ := strings.Cut(rest, "=")
	return key + ":" + effect
}

// kubeletLabels are the labels of Kubernetes that a kubelet may set, beside those whose prefix is, or is a
// subdomain of, one of kubeletPrefixes
// (https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction).
var (
	kubeletLabels = []string{
		"beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os",
		"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
		"kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os", "node.kubernetes.io/instance-type",
		"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
	}
	kubeletPrefixes  = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}
	reservedPrefixes = []string{"kubernetes.io", "k8s.io"}
)

// kubeletMaySet reports whether a kubelet may set a label of its own Node.
func kubeletMaySet(key string) bool {
	prefix, _, found := strings.Cut(key, "/")
	within := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
	return !found || !slices.ContainsFunc(reservedPrefixes, within) ||
		slices.Contains(kubeletLabels, key) || slices.ContainsFunc(kubeletPrefixes, within)
}
