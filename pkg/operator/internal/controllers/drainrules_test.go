// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// skipping returns a rule with which Pods of a machine, of a Cluster and of a namespace are
// skipped; "" leaves the selector out.
func skipping(machine, cluster, namespace string) *clusterv1.MachineDrainRule {
	is := func(label string) *metav1.LabelSelector {
		if label == "" {
			return nil
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpExists}}}
	}
	rule := &clusterv1.MachineDrainRule{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "rule"}}
	rule.Spec.Drain.Behavior = clusterv1.MachineDrainRuleDrainBehaviorSkip
	rule.Spec.Machines = []clusterv1.MachineDrainRuleMachineSelector{{Selector: is(machine), ClusterSelector: is(cluster)}}
	rule.Spec.Pods = []clusterv1.MachineDrainRulePodSelector{{NamespaceSelector: is(namespace)}}
	return rule
}

func newDrainRules(t *testing.T, rule *clusterv1.MachineDrainRule, objects ...runtime.Object) (*controllers.DrainRules, *controllertest.Harness) {
	t.Helper()
	h := controllertest.NewHarness(t, shardtest.New("a"), objects...)
	rules, err := controllers.NewDrainRules(&h.Dependencies)
	require.NoError(t, err)
	h.Put(h.Informers.MachineDrainRules, rule)
	return rules, h
}

func TestWhichMachinesRulesSelect(t *testing.T) {
	pool := &v1beta1.NstanceMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "pool"}}
	pool.Spec.Group = "workers"
	machinePool := &clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "main", Labels: map[string]string{"of-pool": ""}}}
	machinePool.Spec.ClusterName = controllertest.ClusterName
	machinePool.Spec.Template.Labels = map[string]string{"of-template": ""}
	machinePool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: "pool"}
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "m", Labels: map[string]string{"of-machine": ""}}}
	machine.Spec.ProviderID = "kwok:///i-1"
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: controllertest.ClusterName, Labels: map[string]string{"of-cluster": ""}}}

	for name, c := range map[string]struct {
		rule              *clusterv1.MachineDrainRule
		group, providerID string
		want              bool
	}{
		"every machine":                   {rule: skipping("", "", ""), group: "other", providerID: "kwok:///i-9", want: true},
		"the Cluster":                     {rule: skipping("", "of-cluster", ""), group: "other", providerID: "kwok:///i-9", want: true},
		"another Cluster":                 {rule: skipping("", "other", ""), group: "workers", providerID: "kwok:///i-1"},
		"a Machine":                       {rule: skipping("of-machine", "", ""), group: "workers", providerID: "kwok:///i-1", want: true},
		"a Machine has labels of its own": {rule: skipping("of-template", "", ""), group: "workers", providerID: "kwok:///i-1"},
		"another Machine":                 {rule: skipping("of-machine", "", ""), group: "workers", providerID: "kwok:///i-2"},
		"no Machine, the template":        {rule: skipping("of-template", "", ""), group: "workers", providerID: "kwok:///i-2", want: true},
		"no Machine, its pool's label":    {rule: skipping(clusterv1.MachinePoolNameLabel, "", ""), group: "workers", providerID: "kwok:///i-2", want: true},
		"no Machine, its Cluster's label": {rule: skipping(clusterv1.ClusterNameLabel, "", ""), group: "workers", providerID: "kwok:///i-2", want: true},
		"no Machine, the pool":            {rule: skipping("of-pool", "", ""), group: "workers", providerID: "kwok:///i-2"},
		"no Machine, no pool":             {rule: skipping("of-template", "", ""), group: "other", providerID: "kwok:///i-2"},
	} {
		t.Run(name, func(t *testing.T) {
			rules, h := newDrainRules(t, c.rule, pool)
			h.Put(h.Informers.Machines, machine)
			h.Put(h.Informers.MachinePools, machinePool)
			h.Put(h.Informers.Clusters, cluster)
			found, err := rules.OfInstance(c.group, c.providerID)
			require.NoError(t, err)
			rule, err := rules.OfPod(t.Context(), found, &corev1.Pod{})
			require.NoError(t, err)
			assert.Equal(t, c.want, rule.Behavior == drainrule.Skip, "the rule applies")
		})
	}
}

func TestLabelsOfNamespacesAreReadOnceAMinute(t *testing.T) {
	rules, h := newDrainRules(t, skipping("", "", "protected"))
	var fail error
	reads := 0
	h.KubeClient.PrependReactor("get", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
		reads++
		if fail != nil || action.(clienttesting.GetAction).GetName() != "shop" {
			return fail != nil, nil, fail
		}
		return true, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"protected": ""}}}, nil
	})
	found, err := rules.OfInstance("workers", "kwok:///i-1")
	require.NoError(t, err)
	expect := func(namespace string, want drainrule.Behavior) {
		t.Helper()
		rule, err := rules.OfPod(t.Context(), found, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}})
		require.NoError(t, err)
		assert.Equal(t, want, rule.Behavior)
	}
	for range 3 {
		expect("shop", drainrule.Skip)
		expect("deleted", drainrule.Drain)
	}
	assert.Equal(t, 2, reads, "reads")
	h.Advance(time.Minute)
	expect("shop", drainrule.Skip)
	assert.Equal(t, 3, reads, "reads")
	h.Advance(time.Minute)
	fail = errors.New("no answer")
	_, err = rules.OfPod(t.Context(), found, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}})
	assert.ErrorContains(t, err, "get namespace shop, whose labels MachineDrainRules select: no answer")
}
