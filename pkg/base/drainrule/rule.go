// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package drainrule decides how a drain treats a Pod, by the label and the MachineDrainRules of
// Cluster API, in the same order of precedence
// (https://cluster-api.sigs.k8s.io/tasks/automated-machine-management/machine_deletions). The
// operator follows the decision, and the kubectl plugin shows it.
package drainrule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// DoNotDisrupt is an annotation of Pods with which Karpenter does not disrupt a Node
// (https://karpenter.sh/docs/concepts/disruption/#pod-level-controls).
const DoNotDisrupt = "karpenter.sh/do-not-disrupt"

// Behavior is the treatment of a Pod during a drain.
type Behavior int

const (
	// Drain means: the Pod is evicted.
	Drain Behavior = iota
	// WaitCompleted means: the Pod is not evicted, and the drain waits until it has completed.
	WaitCompleted
	// Skip means: the Pod is not evicted, and the drain does not wait for it.
	Skip
)

// String returns the behavior as in the spec of a MachineDrainRule.
func (b Behavior) String() string {
	switch b {
	case WaitCompleted:
		return string(clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted)
	case Skip:
		return string(clusterv1.MachineDrainRuleDrainBehaviorSkip)
	default:
		return string(clusterv1.MachineDrainRuleDrainBehaviorDrain)
	}
}

// Rule is how a drain treats a Pod. The zero value is the rule of a Pod without any rule.
type Rule struct {
	Behavior Behavior
	// Order puts Pods in order: Pods of a higher order are evicted when no Pod of a lower
	// order is left. It is 0 unless Behavior is Drain.
	Order int32
	// Source names the label, the annotation or the MachineDrainRule, "" without any.
	Source string
}

// Rules are the MachineDrainRules that apply to a machine, in the order of their names. The zero
// value has no rules.
type Rules struct {
	rules []machineRule
	// selectNamespaces is set if a rule selects Pods by their namespaces.
	selectNamespaces bool
}

// machineRule is a MachineDrainRule that applies to the machine.
type machineRule struct {
	rule Rule
	// pods are alternatives. Without any, the rule applies to all Pods.
	pods []podSelector
}

type podSelector struct{ pod, namespace labels.Selector }

// ForMachine returns the rules that apply to a machine, by the labels of the Machine and of its
// Cluster. A selector that is not valid is an error, as in Cluster API: it may be meant for Pods
// that must not be evicted.
func ForMachine(all []*clusterv1.MachineDrainRule, machine, cluster labels.Set) (Rules, error) {
	var found Rules
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *clusterv1.MachineDrainRule) int { return cmp.Compare(a.Name, b.Name) })
	for _, object := range sorted {
		applies, err := appliesToMachine(object, machine, cluster)
		if err != nil {
			return Rules{}, fmt.Errorf("read MachineDrainRule %s: %w", object.Name, err)
		}
		pods, selectNamespaces, err := podSelectors(object)
		if err != nil {
			return Rules{}, fmt.Errorf("read MachineDrainRule %s: %w", object.Name, err)
		}
		if applies {
			found.rules = append(found.rules, machineRule{rule: ruleOf(object), pods: pods})
			found.selectNamespaces = found.selectNamespaces || selectNamespaces
		}
	}
	return found, nil
}

// SelectNamespaces reports whether the rules need the labels of the namespaces of Pods.
func (r *Rules) SelectNamespaces() bool { return r.selectNamespaces }

// Of returns the rule of a Pod, which is the first of: the label of the Pod, the annotation of
// Karpenter, the first MachineDrainRule that selects the Pod. namespace has the labels of the
// namespace of the Pod; it is not read unless SelectNamespaces is true.
func Of(pod metav1.Object, namespace labels.Set, rules Rules) Rule {
	if value, ok := pod.GetLabels()[clusterv1.PodDrainLabel]; ok {
		source := "label " + clusterv1.PodDrainLabel
		// Cluster API ignores upper case and the hyphen of this value, and other values.
		switch {
		case strings.EqualFold(value, Skip.String()):
			return Rule{Behavior: Skip, Source: source}
		case strings.EqualFold(strings.Replace(value, "-", "", 1), WaitCompleted.String()):
			return Rule{Behavior: WaitCompleted, Source: source}
		}
	}
	if pod.GetAnnotations()[DoNotDisrupt] == "true" {
		return Rule{Behavior: WaitCompleted, Source: "annotation " + DoNotDisrupt}
	}
	for _, candidate := range rules.rules {
		if candidate.selects(pod.GetLabels(), namespace) {
			return candidate.rule
		}
	}
	return Rule{}
}

// ruleOf returns the rule of the Pods that a MachineDrainRule selects. A behavior that is not
// known delays the eviction: it may be a newer one that protects the Pods.
func ruleOf(object *clusterv1.MachineDrainRule) Rule {
	source := "MachineDrainRule " + object.Name
	switch object.Spec.Drain.Behavior {
	case clusterv1.MachineDrainRuleDrainBehaviorDrain:
		return Rule{Behavior: Drain, Order: ptr.Deref(object.Spec.Drain.Order, 0), Source: source}
	case clusterv1.MachineDrainRuleDrainBehaviorSkip:
		return Rule{Behavior: Skip, Source: source}
	default:
		return Rule{Behavior: WaitCompleted, Source: source}
	}
}

// appliesToMachine reports whether any entry of spec.machines selects a machine, or there is no
// entry.
func appliesToMachine(object *clusterv1.MachineDrainRule, machine, cluster labels.Set) (bool, error) {
	applies := len(object.Spec.Machines) == 0
	// All selectors are parsed, so that an error does not depend on the machine.
	for i, entry := range object.Spec.Machines {
		machines, err := selectorOf(entry.Selector)
		if err != nil {
			return false, fmt.Errorf("parse spec.machines[%d].selector: %w", i, err)
		}
		clusters, err := selectorOf(entry.ClusterSelector)
		if err != nil {
			return false, fmt.Errorf("parse spec.machines[%d].clusterSelector: %w", i, err)
		}
		applies = applies || machines.Matches(machine) && clusters.Matches(cluster)
	}
	return applies, nil
}

// podSelectors returns the entries of spec.pods, and whether any of them selects namespaces.
func podSelectors(object *clusterv1.MachineDrainRule) (selectors []podSelector, selectNamespaces bool, err error) {
	for i, entry := range object.Spec.Pods {
		pods, err := selectorOf(entry.Selector)
		if err != nil {
			return nil, false, fmt.Errorf("parse spec.pods[%d].selector: %w", i, err)
		}
		namespaces, err := selectorOf(entry.NamespaceSelector)
		if err != nil {
			return nil, false, fmt.Errorf("parse spec.pods[%d].namespaceSelector: %w", i, err)
		}
		selectors = append(selectors, podSelector{pod: pods, namespace: namespaces})
		selectNamespaces = selectNamespaces || !namespaces.Empty()
	}
	return selectors, selectNamespaces, nil
}

// selectorOf returns the selector of a MachineDrainRule. In these a missing selector selects
// everything, unlike in other kinds.
func selectorOf(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// selects reports whether the rule applies to a Pod with these labels.
func (r *machineRule) selects(pod, namespace labels.Set) bool {
	return len(r.pods) == 0 || slices.ContainsFunc(r.pods, func(s podSelector) bool {
		return s.pod.Matches(pod) && s.namespace.Matches(namespace)
	})
}
