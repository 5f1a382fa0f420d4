// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/plugin/objects"
)

// drainRules are the rules by which the Pods of a Node are drained (docs/drains.md#rules).
type drainRules struct {
	// byShard is set if a shard has requested the drain: Cluster API does not know the annotation
	// of Karpenter.
	byShard bool
	rules   drainrule.Rules
	// unknown is why the MachineDrainRules are not known, "" if they are.
	unknown    string
	namespaces map[string]objects.Read[corev1.Namespace]
}

// rulesOf returns the rules of a drain.
func (d *Drain) rulesOf(s *objects.Snapshot, node *corev1.Node) drainRules {
	found := drainRules{byShard: slices.Contains(d.By, ByShard), namespaces: s.PodNamespaces, unknown: s.DrainRules.Unknown}
	if d.Namespace == "" && len(s.DrainRules.Items) > 0 {
		found.unknown = cmp.Or(d.PoolUnknown, "no object that was read has the instance")
		return found
	}
	var rules []*clusterv1.MachineDrainRule
	for i := range s.DrainRules.Items {
		if rule := &s.DrainRules.Items[i]; rule.Namespace == d.Namespace {
			rules = append(rules, rule)
		}
	}
	if len(rules) == 0 {
		return found
	}
	machine, cluster, unknown := d.selectedLabels(s, node)
	if found.unknown = unknown; unknown != "" {
		return found
	}
	var err error
	if found.rules, err = drainrule.ForMachine(rules, machine, cluster); err != nil {
		found.unknown = err.Error()
	}
	return found
}

// selectedLabels returns the labels that MachineDrainRules select: of the Machine, or in a pool
// without Machines the labels that its Machine would have, and of the Cluster. unknown is why they
// are not known.
func (d *Drain) selectedLabels(s *objects.Snapshot, node *corev1.Node) (machine, cluster labels.Set, unknown string) {
	if s.Machines.Unknown != "" {
		return nil, nil, s.Machines.Unknown
	}
	clusterName := ""
	at := slices.IndexFunc(s.Machines.Items, func(machine clusterv1.Machine) bool {
		return providerid.Match(machine.Spec.ProviderID, node.Spec.ProviderID)
	})
	if at >= 0 {
		machine, clusterName = s.Machines.Items[at].Labels, s.Machines.Items[at].Spec.ClusterName
	} else if s.MachinePools.Unknown != "" {
		return nil, nil, s.MachinePools.Unknown
	}
	for i := range s.MachinePools.Items {
		if pool := &s.MachinePools.Items[i]; at < 0 && pool.Namespace == d.Namespace && capi.PoolOf(pool) == d.Pool {
			machine, clusterName = capi.MachineLabels(pool), pool.Spec.ClusterName
			break
		}
	}
	for i := range s.CAPIClusters.Items {
		if found := &s.CAPIClusters.Items[i]; found.Namespace == d.Namespace && found.Name == clusterName {
			cluster = found.Labels
		}
	}
	return machine, cluster, s.CAPIClusters.Unknown
}

// of returns the rule of a Pod. unknown is why it is not known, and the rule is the zero value then.
func (r *drainRules) of(pod *corev1.Pod) (rule drainrule.Rule, unknown string) {
	if !r.byShard {
		pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Labels: pod.Labels}}
	}
	rule = drainrule.Of(pod, nil, drainrule.Rules{})
	read := r.namespaces[pod.Namespace]
	switch {
	case rule.Source != "":
		// The label and the annotation count whether MachineDrainRules can be read or not.
		return rule, ""
	case r.unknown != "":
		return rule, r.unknown
	case r.rules.SelectNamespaces() && read.Unknown != "":
		return rule, read.Unknown
	}
	// A namespace that does not exist has the label that every namespace has, as in the operator.
	namespace := labels.Set{corev1.LabelMetadataName: pod.Namespace}
	if len(read.Items) == 1 {
		namespace = read.Items[0].Labels
	}
	return drainrule.Of(pod, namespace, r.rules), ""
}
