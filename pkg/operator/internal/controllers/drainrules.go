// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/drainrule"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
)

// namespaceTTL is the time for which the labels of a namespace are used again. Every change of a
// Pod of a drained Node needs them.
const namespaceTTL = time.Minute

// DrainRules finds the rules by which the Pods of an instance are drained.
type DrainRules struct {
	rules, machines, machinePools, clusters cache.Indexer
	pools                                   *Pools
	// cluster is the key of the Cluster.
	cluster string
	// client reads the namespaces of Pods.
	client kubernetes.Interface
	clock  clock.PassiveClock

	mu         sync.Mutex
	namespaces map[string]namespaceLabels
}

// namespaceLabels are the labels of a namespace, and when they were read.
type namespaceLabels struct {
	labels labels.Set
	at     time.Time
}

// NewDrainRules returns the DrainRules of the informers. It indexes Machines by provider id.
func NewDrainRules(d *Dependencies) (*DrainRules, error) {
	pools, err := NewPools(d.Informers.Nstance.NstanceMachinePools().Informer())
	if err != nil {
		return nil, err
	}
	if err := controller.IndexOnce(d.Informers.Machines, byProviderID, indexMachineByProviderID); err != nil {
		return nil, fmt.Errorf("index Machines by provider id: %w", err)
	}
	return &DrainRules{
		rules:        d.Informers.MachineDrainRules.GetIndexer(),
		machines:     d.Informers.Machines.GetIndexer(),
		machinePools: d.Informers.MachinePools.GetIndexer(),
		clusters:     d.Informers.Clusters.GetIndexer(),
		pools:        pools,
		cluster:      cache.NewObjectName(d.Namespace, d.ClusterName).String(),
		client:       d.Workload.Kube,
		clock:        d.Clock,
		namespaces:   map[string]namespaceLabels{},
	}, nil
}

// OfInstance returns the MachineDrainRules that apply to an instance of a group. They select it by
// the labels of its Machine. An instance of a pool without Machines has the labels that Cluster
// API would give to its Machine.
func (r *DrainRules) OfInstance(group, providerID string) (drainrule.Rules, error) {
	objects := r.rules.List()
	if len(objects) == 0 {
		return drainrule.Rules{}, nil
	}
	rules := make([]*clusterv1.MachineDrainRule, 0, len(objects))
	for _, object := range objects {
		if rule, ok := object.(*clusterv1.MachineDrainRule); ok {
			rules = append(rules, rule)
		}
	}
	return drainrule.ForMachine(rules, r.machineLabels(group, providerID), r.clusterLabels())
}

// MachineOf returns the Machine of an instance, nil if it has none.
func (r *DrainRules) MachineOf(providerID string) *clusterv1.Machine {
	for _, machine := range controller.Indexed[clusterv1.Machine](r.machines, byProviderID, providerid.Key(providerID)) {
		if providerid.Match(providerID, machine.Spec.ProviderID) {
			return machine
		}
	}
	return nil
}

func (r *DrainRules) machineLabels(group, providerID string) labels.Set {
	if machine := r.MachineOf(providerID); machine != nil {
		return machine.Labels
	}
	var machinePools []*clusterv1.MachinePool
	for _, pool := range r.pools.OfGroup(group) {
		machinePools = append(machinePools, controller.Indexed[clusterv1.MachinePool](r.machinePools, capi.ByPool, pool.Name)...)
	}
	if len(machinePools) == 0 {
		return nil
	}
	return capi.MachineLabels(slices.MinFunc(machinePools, func(a, b *clusterv1.MachinePool) int { return cmp.Compare(a.Name, b.Name) }))
}

func (r *DrainRules) clusterLabels() labels.Set {
	object, exists, err := r.clusters.GetByKey(r.cluster)
	if err != nil || !exists {
		return nil
	}
	cluster, ok := object.(*clusterv1.Cluster)
	if !ok {
		return nil
	}
	return cluster.Labels
}

// OfPod returns the rule of a Pod, given the rules of the instance on which it runs.
func (r *DrainRules) OfPod(ctx context.Context, rules drainrule.Rules, pod *corev1.Pod) (drainrule.Rule, error) {
	if !rules.SelectNamespaces() {
		return drainrule.Of(pod, nil, rules), nil
	}
	namespace, err := r.namespaceLabels(ctx, pod.Namespace)
	if err != nil {
		return drainrule.Rule{}, err
	}
	return drainrule.Of(pod, namespace, rules), nil
}

// namespaceLabels returns the labels of a namespace. A namespace that does not exist has the label
// that every namespace has: its Pods are about to be deleted.
func (r *DrainRules) namespaceLabels(ctx context.Context, name string) (labels.Set, error) {
	r.mu.Lock()
	known, ok := r.namespaces[name]
	r.mu.Unlock()
	if ok && r.clock.Since(known.at) < namespaceTTL {
		return known.labels, nil
	}
	read := namespaceLabels{labels: labels.Set{corev1.LabelMetadataName: name}, at: r.clock.Now()}
	namespace, err := r.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get namespace %s, whose labels MachineDrainRules select: %w", name, err)
	}
	if err == nil {
		read.labels = namespace.Labels
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.namespaces[name] = read
	return read.labels, nil
}

func indexMachineByProviderID(obj any) ([]string, error) {
	machine, ok := obj.(*clusterv1.Machine)
	if !ok || providerid.Key(machine.Spec.ProviderID) == "" {
		return nil, nil
	}
	return []string{providerid.Key(machine.Spec.ProviderID)}, nil
}
