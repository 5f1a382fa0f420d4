// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drainrule

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// object returns a MachineDrainRule. It drains the Pods in an order, or has another behavior.
func object(name string, behavior clusterv1.MachineDrainRuleDrainBehavior, order *int32) *clusterv1.MachineDrainRule {
	return &clusterv1.MachineDrainRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       clusterv1.MachineDrainRuleSpec{Drain: clusterv1.MachineDrainRuleDrainConfig{Behavior: behavior, Order: order}},
	}
}

// machines adds an entry of spec.machines; nil is a selector that is left out.
func machines(object *clusterv1.MachineDrainRule, machine, cluster *metav1.LabelSelector) *clusterv1.MachineDrainRule {
	object.Spec.Machines = append(object.Spec.Machines, clusterv1.MachineDrainRuleMachineSelector{Selector: machine, ClusterSelector: cluster})
	return object
}

// pods adds an entry of spec.pods.
func pods(object *clusterv1.MachineDrainRule, pod, namespace *metav1.LabelSelector) *clusterv1.MachineDrainRule {
	object.Spec.Pods = append(object.Spec.Pods, clusterv1.MachineDrainRulePodSelector{Selector: pod, NamespaceSelector: namespace})
	return object
}

// is selects objects by a label.
func is(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

var invalid = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Resembles"}}}

// The cases are those of Cluster API
// (https://github.com/kubernetes-sigs/cluster-api/blob/v1.14.2/core/reconcilers/machine/drain/drain_test.go),
// and what it does not have: Karpenter's annotation, and behaviors that are not known.
func TestOf(t *testing.T) {
	drain := func(name string, order int32) *clusterv1.MachineDrainRule {
		return object(name, clusterv1.MachineDrainRuleDrainBehaviorDrain, ptr.To(order))
	}
	skip := func(name string) *clusterv1.MachineDrainRule {
		return object(name, clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
	}
	wait := func(name string) *clusterv1.MachineDrainRule {
		return object(name, clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted, nil)
	}
	ofRule := func(behavior Behavior, order int32) Rule {
		return Rule{Behavior: behavior, Order: order, Source: "MachineDrainRule a"}
	}
	const byLabel, byAnnotation = "label cluster.x-k8s.io/drain", "annotation karpenter.sh/do-not-disrupt"
	for name, c := range map[string]struct {
		label, annotation string
		rules             []*clusterv1.MachineDrainRule
		want              Rule
	}{
		"nothing":                               {want: Rule{}},
		"label skip":                            {label: "skip", want: Rule{Behavior: Skip, Source: byLabel}},
		"label Skip":                            {label: "Skip", want: Rule{Behavior: Skip, Source: byLabel}},
		"label wait-completed":                  {label: "wait-completed", want: Rule{Behavior: WaitCompleted, Source: byLabel}},
		"label WaitCompleted":                   {label: "WaitCompleted", want: Rule{Behavior: WaitCompleted, Source: byLabel}},
		"label Wait-Completed":                  {label: "Wait-Completed", want: Rule{Behavior: WaitCompleted, Source: byLabel}},
		"label waitcompleted":                   {label: "waitcompleted", want: Rule{Behavior: WaitCompleted, Source: byLabel}},
		"label wait--completed":                 {label: "wait--completed", want: Rule{}},
		"label of another value":                {label: "later", want: Rule{}},
		"label of another value, rule":          {label: "later", rules: []*clusterv1.MachineDrainRule{skip("a")}, want: ofRule(Skip, 0)},
		"label before rule":                     {label: "skip", rules: []*clusterv1.MachineDrainRule{drain("a", 5)}, want: Rule{Behavior: Skip, Source: byLabel}},
		"label before annotation":               {label: "skip", annotation: "true", want: Rule{Behavior: Skip, Source: byLabel}},
		"annotation true":                       {annotation: "true", want: Rule{Behavior: WaitCompleted, Source: byAnnotation}},
		"annotation false":                      {annotation: "false", want: Rule{}},
		"annotation before rule":                {annotation: "true", rules: []*clusterv1.MachineDrainRule{skip("a")}, want: Rule{Behavior: WaitCompleted, Source: byAnnotation}},
		"Skip":                                  {rules: []*clusterv1.MachineDrainRule{skip("a")}, want: ofRule(Skip, 0)},
		"WaitCompleted":                         {rules: []*clusterv1.MachineDrainRule{wait("a")}, want: ofRule(WaitCompleted, 0)},
		"Drain in an order":                     {rules: []*clusterv1.MachineDrainRule{drain("a", 5)}, want: ofRule(Drain, 5)},
		"Drain in a negative order":             {rules: []*clusterv1.MachineDrainRule{drain("a", -5)}, want: ofRule(Drain, -5)},
		"Drain without an order":                {rules: []*clusterv1.MachineDrainRule{object("a", "Drain", nil)}, want: ofRule(Drain, 0)},
		"a behavior that is not known":          {rules: []*clusterv1.MachineDrainRule{object("a", "Migrate", ptr.To[int32](7))}, want: ofRule(WaitCompleted, 0)},
		"the first by name":                     {rules: []*clusterv1.MachineDrainRule{drain("c", 3), drain("a", 1), drain("b", 2)}, want: ofRule(Drain, 1)},
		"the first does not match":              {rules: []*clusterv1.MachineDrainRule{pods(skip("0"), is("app", "other"), nil), drain("a", 1)}, want: ofRule(Drain, 1)},
		"Pod selector":                          {rules: []*clusterv1.MachineDrainRule{pods(skip("a"), is("app", "web"), nil)}, want: ofRule(Skip, 0)},
		"empty Pod selector":                    {rules: []*clusterv1.MachineDrainRule{pods(skip("a"), &metav1.LabelSelector{}, nil)}, want: ofRule(Skip, 0)},
		"Pod selector does not match":           {rules: []*clusterv1.MachineDrainRule{pods(skip("a"), is("app", "other"), nil)}, want: Rule{}},
		"namespace selector":                    {rules: []*clusterv1.MachineDrainRule{pods(skip("a"), nil, is("team", "shop"))}, want: ofRule(Skip, 0)},
		"namespace selector does not match":     {rules: []*clusterv1.MachineDrainRule{pods(skip("a"), nil, is("team", "other"))}, want: Rule{}},
		"only the Pod selector of both":         {rules: []*clusterv1.MachineDrainRule{pods(skip("a"), is("app", "web"), is("team", "other"))}, want: Rule{}},
		"only the namespace selector of both":   {rules: []*clusterv1.MachineDrainRule{pods(skip("a"), is("app", "other"), is("team", "shop"))}, want: Rule{}},
		"the second of two entries":             {rules: []*clusterv1.MachineDrainRule{pods(pods(skip("a"), is("app", "other"), nil), is("app", "web"), is("team", "shop"))}, want: ofRule(Skip, 0)},
		"one selector of each of two entries":   {rules: []*clusterv1.MachineDrainRule{pods(pods(skip("a"), is("app", "other"), is("team", "shop")), is("app", "web"), is("team", "other"))}, want: Rule{}},
		"machine":                               {rules: []*clusterv1.MachineDrainRule{machines(skip("a"), is("os", "linux"), nil)}, want: ofRule(Skip, 0)},
		"empty machine selector":                {rules: []*clusterv1.MachineDrainRule{machines(skip("a"), &metav1.LabelSelector{}, nil)}, want: ofRule(Skip, 0)},
		"another machine":                       {rules: []*clusterv1.MachineDrainRule{machines(skip("a"), is("os", "windows"), nil)}, want: Rule{}},
		"Cluster":                               {rules: []*clusterv1.MachineDrainRule{machines(skip("a"), nil, is("stage", "production"))}, want: ofRule(Skip, 0)},
		"machine of another Cluster":            {rules: []*clusterv1.MachineDrainRule{machines(skip("a"), is("os", "linux"), is("stage", "test"))}, want: Rule{}},
		"another machine of the Cluster":        {rules: []*clusterv1.MachineDrainRule{machines(skip("a"), is("os", "windows"), is("stage", "production"))}, want: Rule{}},
		"the second of two entries of machines": {rules: []*clusterv1.MachineDrainRule{machines(machines(skip("a"), is("os", "windows"), nil), is("os", "linux"), is("stage", "production"))}, want: ofRule(Skip, 0)},
		"the Pod matches, the machine does not": {rules: []*clusterv1.MachineDrainRule{machines(pods(skip("a"), is("app", "web"), nil), is("os", "windows"), nil)}, want: Rule{}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
			if c.label != "" {
				pod.Labels[clusterv1.PodDrainLabel] = c.label
			}
			if c.annotation != "" {
				pod.Annotations = map[string]string{DoNotDisrupt: c.annotation}
			}
			rules, err := ForMachine(c.rules, labels.Set{"os": "linux"}, labels.Set{"stage": "production"})
			require.NoError(t, err)
			assert.Equal(t, c.want, Of(pod, labels.Set{"team": "shop"}, rules))
		})
	}
}

func TestAnInvalidSelectorIsAnError(t *testing.T) {
	skip := func() *clusterv1.MachineDrainRule {
		return object("a", clusterv1.MachineDrainRuleDrainBehaviorSkip, nil)
	}
	for want, rule := range map[string]*clusterv1.MachineDrainRule{
		"read MachineDrainRule a: parse spec.machines[0].selector: ":        machines(skip(), invalid, nil),
		"read MachineDrainRule a: parse spec.machines[0].clusterSelector: ": machines(skip(), is("os", "windows"), invalid),
		"read MachineDrainRule a: parse spec.pods[1].selector: ":            pods(pods(skip(), nil, nil), invalid, nil),
		"read MachineDrainRule a: parse spec.pods[0].namespaceSelector: ":   machines(pods(skip(), nil, invalid), is("os", "windows"), nil),
	} {
		_, err := ForMachine([]*clusterv1.MachineDrainRule{rule}, labels.Set{"os": "linux"}, nil)
		assert.ErrorContains(t, err, want)
	}
}

// Namespaces are read from the API server, so they are read only if they matter.
func TestOnlySelectorsOfNamespacesNeedNamespaces(t *testing.T) {
	for name, c := range map[string]struct {
		rule *clusterv1.MachineDrainRule
		want bool
	}{
		"all Pods":                 {rule: object("a", "Skip", nil)},
		"Pods by label":            {rule: pods(object("a", "Skip", nil), is("app", "web"), nil)},
		"Pods of all namespaces":   {rule: pods(object("a", "Skip", nil), nil, &metav1.LabelSelector{})},
		"Pods of a namespace":      {rule: pods(object("a", "Skip", nil), nil, is("team", "shop")), want: true},
		"Pods of another machine":  {rule: machines(pods(object("a", "Skip", nil), nil, is("team", "shop")), is("os", "windows"), nil)},
		"Pods of a namespace, too": {rule: pods(pods(object("a", "Skip", nil), nil, nil), nil, is("team", "shop")), want: true},
	} {
		rules, err := ForMachine([]*clusterv1.MachineDrainRule{c.rule}, labels.Set{"os": "linux"}, nil)
		require.NoError(t, err)
		assert.Equal(t, c.want, rules.SelectNamespaces(), name)
	}
}
