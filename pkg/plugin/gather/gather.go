// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package gather reads the objects that the commands of the plugin need from the API server.
// It gets and lists, in pages, and never lists the Pods of the whole cluster. It writes only what the
// commands rotate and replace change; all other writes are dry runs.
package gather

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/status"
)

// Limits of the requests of a command. qps and burst are the limits of kubectl.
const (
	qps   = 50
	burst = 300
	// maxConcurrent is the number of requests for the Pods of Nodes at a time.
	maxConcurrent = 8
)

// Gatherer reads objects with the rights of the user.
type Gatherer struct {
	nstance versioned.Interface
	capi    *capi.Client
	kube    kubernetes.Interface
	// nodes is the client of the cluster with the Nodes and Pods, nil if that is another
	// cluster whose kubeconfig was not given.
	nodes kubernetes.Interface
	// separate is set if nodes was given explicitly.
	separate bool
	// namespace is empty for all namespaces.
	namespace string
}

// New returns a Gatherer. nodes is the configuration of the cluster with the Nodes and
// Pods, nil for the same cluster. An empty namespace means all namespaces.
func New(config, nodes *rest.Config, namespace string) (*Gatherer, error) {
	g := &Gatherer{namespace: namespace, separate: nodes != nil}
	config = limited(config)
	var errs [4]error
	g.nstance, errs[0] = versioned.NewForConfig(config)
	g.capi, errs[1] = capi.NewForConfig(config)
	g.kube, errs[2] = kubernetes.NewForConfig(config)
	g.nodes = g.kube
	if nodes != nil {
		g.nodes, errs[3] = kubernetes.NewForConfig(limited(nodes))
	}
	return g, errors.Join(errs[:]...)
}

func limited(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = qps, burst
	return config
}

// Status reads the objects for "kubectl nstance status". An empty name means all pools. The error
// is a NotFoundError if there is no such pool.
func (g *Gatherer) Status(ctx context.Context, name string) (*objects.Snapshot, error) {
	s := &objects.Snapshot{Namespace: g.namespace}
	if err := g.readPools(ctx, s, name); err != nil {
		return nil, err
	}
	groups := ""
	if name != "" && len(s.Pools.Items) == 1 {
		groups = v1beta1.LabelGroup + "=" + string(s.Pools.Items[0].Spec.Group)
	}
	var reads sync.WaitGroup
	reads.Go(func() { s.MachinePools = g.machinePools(ctx) })
	reads.Go(func() { s.ShardGroups = g.shardGroups(ctx, groups) })
	reads.Go(func() { s.NstanceMachines = g.nstanceMachinesOf(ctx, groups) })
	reads.Go(func() { s.Machines = g.machinesOf(ctx, name) })
	reads.Go(func() { g.readNodes(ctx, s, g.allNodes) })
	reads.Wait()
	if name != "" {
		s.NstanceMachines.Items = slices.DeleteFunc(s.NstanceMachines.Items, func(machine v1beta1.NstanceMachine) bool {
			return !slices.ContainsFunc(s.Pools.Items, func(pool v1beta1.NstanceMachinePool) bool {
				return pool.Namespace == machine.Namespace && pool.Spec.Group == machine.Spec.GroupRef.Name
			})
		})
	}
	keepOwnNodes(s)
	g.readDrains(ctx, s)
	return s, nil
}

// readPools reads the pool of a name, or all pools if the name is empty.
func (g *Gatherer) readPools(ctx context.Context, s *objects.Snapshot, name string) error {
	if name != "" && g.namespace != "" {
		pool, err := g.nstance.InfrastructureV1beta1().NstanceMachinePools(g.namespace).Get(ctx, name, metav1.GetOptions{})
		s.Pools = readOf("nstancemachinepools", pool, err)
		if s.Pools.Unknown != "" {
			return errors.New(s.Pools.Unknown)
		}
		if len(s.Pools.Items) == 1 {
			return nil
		}
	}
	s.Pools = g.pools(ctx)
	if s.Pools.Unknown != "" {
		// Without pools there is nothing to show.
		return errors.New(s.Pools.Unknown)
	}
	if name == "" {
		return nil
	}
	existing := []string{}
	for _, pool := range s.Pools.Items {
		existing = append(existing, pool.Name)
	}
	s.Pools.Items = slices.DeleteFunc(s.Pools.Items, func(pool v1beta1.NstanceMachinePool) bool { return pool.Name != name })
	if len(s.Pools.Items) == 0 {
		return &NotFoundError{Kind: v1beta1.PoolKind, Namespace: g.namespace, Name: name, Existing: existing}
	}
	return nil
}

// nstanceMachinesOf reads the NstanceMachines of the pools that a selector selects, and the
// NstanceMachines of no pool, which do not have the label.
func (g *Gatherer) nstanceMachinesOf(ctx context.Context, selector string) objects.Read[v1beta1.NstanceMachine] {
	if selector == "" {
		return g.nstanceMachines(ctx, "")
	}
	return merge(g.nstanceMachines(ctx, selector), g.nstanceMachines(ctx, "!"+v1beta1.LabelGroup))
}

// machinesOf reads the Machines of a pool and the Machines of no pool, or all Machines if the
// name is empty.
func (g *Gatherer) machinesOf(ctx context.Context, pool string) objects.Read[clusterv1.Machine] {
	if pool == "" {
		return g.machines(ctx, "")
	}
	const label = clusterv1.MachinePoolNameLabel
	return merge(g.machines(ctx, label+"="+capi.LabelValue(pool)), g.machines(ctx, "!"+label))
}

// merge returns the items of two reads.
func merge[T any](a, b objects.Read[T]) objects.Read[T] {
	for _, read := range []objects.Read[T]{a, b} {
		if read.Unknown != "" {
			return objects.Unread[T](read.Unknown)
		}
	}
	return objects.Read[T]{Items: slices.Concat(a.Items, b.Items)}
}

// keepOwnNodes removes the Nodes that belong to no instance in the snapshot.
func keepOwnNodes(s *objects.Snapshot) {
	own := map[string][]string{}
	add := func(id string) {
		if key := providerid.Key(id); key != "" {
			own[key] = append(own[key], id)
		}
	}
	for i := range s.ShardGroups.Items {
		for _, id := range s.ShardGroups.Items[i].Status.ProviderIDs {
			add(id)
		}
	}
	for i := range s.NstanceMachines.Items {
		add(objects.ProviderIDOf(&s.NstanceMachines.Items[i]))
	}
	s.Nodes.Items = slices.DeleteFunc(s.Nodes.Items, func(node corev1.Node) bool {
		return !slices.ContainsFunc(own[providerid.Key(node.Spec.ProviderID)], func(id string) bool {
			return providerid.Match(id, node.Spec.ProviderID)
		})
	})
}

// Why reads the objects for "kubectl nstance why" about the instance that [objects.Snapshot.Locate]
// finds by a name.
func (g *Gatherer) Why(ctx context.Context, name string) (*objects.Snapshot, error) {
	s := &objects.Snapshot{Namespace: g.namespace}
	var reads sync.WaitGroup
	reads.Go(func() { s.Pools = g.pools(ctx) })
	reads.Go(func() { s.MachinePools = g.machinePools(ctx) })
	reads.Go(func() { s.ShardGroups = g.shardGroups(ctx, "") })
	reads.Go(func() { s.NstanceMachines = g.nstanceMachines(ctx, "") })
	reads.Go(func() { s.Machines = g.machines(ctx, "") })
	reads.Go(func() { g.readNodes(ctx, s, g.node(name)) })
	reads.Wait()
	subject := s.Locate(name)
	if !subject.Found() && s.Nodes.Unknown == "" && s.NstanceMachines.Unknown == "" {
		return nil, &NotFoundError{Kind: "Node, NstanceMachine or instance", Namespace: g.namespace, Name: name}
	}
	if id := subject.ProviderID(); subject.Node == nil && s.Nodes.Unknown == "" && id != "" {
		// The Node has another name than its instance.
		s.Nodes = g.allNodes(ctx)
		s.Nodes.Items = slices.DeleteFunc(s.Nodes.Items, func(node corev1.Node) bool {
			return !providerid.Match(id, node.Spec.ProviderID)
		})
		subject = s.Locate(name)
	}
	g.readDrains(ctx, s)
	if node := subject.Node; node != nil {
		s.NodeEvents = events(ctx, g.nodes, metav1.NamespaceDefault, "regarding.kind=Node,regarding.name="+node.Name)
	}
	if pool := subject.Pool; pool != nil {
		s.PoolEvents = events(ctx, g.kube, pool.Namespace, "regarding.kind="+v1beta1.PoolKind+",regarding.name="+pool.Name)
	}
	g.readRequestingPod(ctx, s, subject)
	return s, nil
}

// readRequestingPod reads the Pod for which an instance was created.
func (g *Gatherer) readRequestingPod(ctx context.Context, s *objects.Snapshot, subject objects.Subject) {
	pod, ok := subject.RequestedBy()
	if !ok {
		return
	}
	s.Requesting = map[types.NamespacedName]objects.Read[corev1.Pod]{}
	if !g.separate && s.Nodes.Unknown == inOtherCluster {
		s.Requesting[pod] = objects.Unread[corev1.Pod](inOtherCluster)
		return
	}
	found, err := g.nodes.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	s.Requesting[pod] = readOf("pods", found, err)
}

// byOperator selects the events of the operator.
const byOperator = "reportingController=nstance-operator"

// Dashboard reads the objects for "kubectl nstance dashboard": the objects that Status reads
// for all pools, and the events of the operator.
func (g *Gatherer) Dashboard(ctx context.Context) (*objects.Snapshot, error) {
	var ofObjects, ofNodes objects.Read[eventsv1.Event]
	var reads sync.WaitGroup
	reads.Go(func() { ofObjects = events(ctx, g.kube, g.namespace, byOperator) })
	reads.Go(func() { ofNodes = g.recentNodeEvents(ctx) })
	s, err := g.Status(ctx, "")
	reads.Wait()
	if err != nil {
		return nil, err
	}
	s.RecentEvents, s.RecentNodeEvents = ofObjects, ofNodes
	if s.Nodes.Unknown == inOtherCluster {
		s.RecentNodeEvents = objects.Unread[eventsv1.Event](inOtherCluster)
	}
	return s, nil
}

// recentNodeEvents reads the events of the operator about Nodes, unless they are among the
// events of the namespace. Events about Nodes are in the namespace default.
func (g *Gatherer) recentNodeEvents(ctx context.Context) objects.Read[eventsv1.Event] {
	if !g.separate && (g.namespace == metav1.NamespaceAll || g.namespace == metav1.NamespaceDefault) {
		return objects.Read[eventsv1.Event]{}
	}
	return events(ctx, g.nodes, metav1.NamespaceDefault, byOperator)
}

// Drains reads the objects for "kubectl nstance drain-status" of a Node, or of all Nodes if the
// name is empty. The error is a NotFoundError if there is no such Node.
func (g *Gatherer) Drains(ctx context.Context, node string) (*objects.Snapshot, error) {
	s := &objects.Snapshot{Namespace: g.namespace}
	read := g.allNodes
	if node != "" {
		read = g.node(node)
	}
	var reads sync.WaitGroup
	reads.Go(func() { s.ShardGroups = g.shardGroups(ctx, "") })
	reads.Go(func() { s.NstanceMachines = g.nstanceMachines(ctx, "") })
	reads.Go(func() { s.Machines = g.machines(ctx, "") })
	reads.Go(func() { g.readNodes(ctx, s, read) })
	reads.Wait()
	if node != "" && s.Nodes.Unknown == "" && len(s.Nodes.Items) == 0 {
		return nil, &NotFoundError{Kind: "Node", Name: node}
	}
	g.readDrains(ctx, s)
	return s, nil
}

// readDrains reads the Pods, their budgets, the volumes and the MachineDrainRules of the Nodes that
// are being drained, and nothing if no Node is being drained.
func (g *Gatherer) readDrains(ctx context.Context, s *objects.Snapshot) {
	g.ReadPods(ctx, s, nil)
}

// ReadPods reads what readDrains reads also for other Nodes.
func (g *Gatherer) ReadPods(ctx context.Context, s *objects.Snapshot, others []string) {
	nodes := slices.Concat(status.DrainedNodes(s), others)
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	if len(nodes) == 0 {
		return
	}
	var reads sync.WaitGroup
	reads.Go(func() { s.Attachments = g.attachments(ctx) })
	reads.Go(func() { g.readDrainRules(ctx, s) })
	reads.Go(func() {
		s.Pods = each(nodes, func(node string) objects.Read[corev1.Pod] { return g.podsOn(ctx, node) })
		s.Budgets = each(namespaces(s.Pods), func(namespace string) objects.Read[policyv1.PodDisruptionBudget] {
			return g.budgetsIn(ctx, namespace)
		})
	})
	reads.Wait()
	if slices.ContainsFunc(s.DrainRules.Items, selectsNamespaces) {
		s.PodNamespaces = each(namespaces(s.Pods), func(name string) objects.Read[corev1.Namespace] { return g.podNamespace(ctx, name) })
	}
}

// readDrainRules reads the MachineDrainRules and the objects of Cluster API that they select.
func (g *Gatherer) readDrainRules(ctx context.Context, s *objects.Snapshot) {
	s.DrainRules = g.drainRules(ctx)
	if len(s.DrainRules.Items) == 0 {
		return
	}
	s.CAPIClusters = g.capiClusters(ctx)
	if len(s.MachinePools.Items) == 0 && s.MachinePools.Unknown == "" {
		s.MachinePools = g.machinePools(ctx)
	}
}

func selectsNamespaces(rule clusterv1.MachineDrainRule) bool {
	return slices.ContainsFunc(rule.Spec.Pods, func(pods clusterv1.MachineDrainRulePodSelector) bool { return pods.NamespaceSelector != nil })
}

// namespaces returns the namespaces of Pods, sorted.
func namespaces(pods map[string]objects.Read[corev1.Pod]) []string {
	found := map[string]bool{}
	for _, read := range pods {
		for i := range read.Items {
			found[read.Items[i].Namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// each calls a function for each key, at most maxConcurrent at the same time.
func each[T any](keys []string, read func(key string) objects.Read[T]) map[string]objects.Read[T] {
	results := make([]objects.Read[T], len(keys))
	slots := make(chan struct{}, maxConcurrent)
	var calls sync.WaitGroup
	for i, key := range keys {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			results[i] = read(key)
		})
	}
	calls.Wait()
	byKey := make(map[string]objects.Read[T], len(keys))
	for i, key := range keys {
		byKey[key] = results[i]
	}
	return byKey
}

// NotFoundError is the error of a command whose object does not exist.
type NotFoundError struct {
	// Kind and Name name the missing object. Namespace is empty for a Node, or if all
	// namespaces were searched.
	Kind, Namespace, Name string
	// Existing are the objects that exist instead, nil if they are not listed.
	Existing []string
}

func (e *NotFoundError) Error() string {
	text := fmt.Sprintf("%s %q not found", e.Kind, e.Name)
	if e.Namespace != "" {
		text += fmt.Sprintf(" in namespace %q", e.Namespace)
	}
	switch {
	case e.Existing == nil:
		return text
	case len(e.Existing) == 0:
		return text + "; there are none"
	}
	return text + "; there are: " + strings.Join(e.Existing, ", ")
}
