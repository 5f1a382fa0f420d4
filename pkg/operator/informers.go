// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/cluster"
	"nstance.dev/operator/pkg/operator/internal/controllers/drain"
	"nstance.dev/operator/pkg/operator/internal/controllers/nodesettings"
	"nstance.dev/operator/pkg/operator/internal/controllers/ondemand"
	"nstance.dev/operator/pkg/operator/internal/controllers/scaledown"
)

// informers watch all Kubernetes objects that the operator reads. Their caches omit fields
// that it does not read.
type informers struct {
	controllers.Informers

	shards, ca, nonce, key, cert cache.SharedIndexInformer

	webhookCert, webhookConfiguration cache.SharedIndexInformer

	start []func(context.Context)
}

func newInformers(clients *clients, options *Options) (*informers, error) {
	kinds := externalversions.NewSharedInformerFactoryWithOptions(clients.nstance, options.ResyncPeriod,
		externalversions.WithNamespace(options.Namespace),
		externalversions.WithTransform(trim))
	nodes := kubeinformers.NewSharedInformerFactoryWithOptions(clients.workload.Kube, options.ResyncPeriod,
		kubeinformers.WithTransform(trimNode))
	volumes := kubeinformers.NewSharedInformerFactoryWithOptions(clients.workload.Kube, options.ResyncPeriod,
		kubeinformers.WithTransform(drain.TrimVolumeAttachment))

	all := &informers{Informers: controllers.Informers{
		Nstance:           kinds.Infrastructure().V1beta1(),
		Clusters:          capi.NewClusterInformer(clients.capi, options.Namespace, options.ResyncPeriod),
		MachinePools:      capi.NewMachinePoolInformer(clients.capi, options.Namespace, options.ResyncPeriod),
		Machines:          capi.NewMachineInformer(clients.capi, options.Namespace, options.ResyncPeriod),
		MachineDrainRules: capi.NewMachineDrainRuleInformer(clients.capi, options.Namespace, options.ResyncPeriod),
		Nodes:             nodes.Core().V1().Nodes().Informer(),
		Pods:              ondemand.NewPodInformer(clients.workload.Metadata, options.ClusterName(), options.ResyncPeriod),
		VolumeAttachments: volumes.Storage().V1().VolumeAttachments().Informer(),
	}}
	if clients.workloadServer != "" {
		for _, informer := range []*cache.SharedIndexInformer{&all.Nodes, &all.Pods, &all.VolumeAttachments} {
			*informer = backgroundInformer{*informer}
		}
	}
	all.start = append(all.start, kinds.StartWithContext, nodes.StartWithContext, volumes.StartWithContext,
		func(ctx context.Context) { go all.Pods.RunWithContext(ctx) })
	for informer, transform := range map[cache.SharedIndexInformer]cache.TransformFunc{
		all.Clusters:          trim,
		all.Machines:          trim,
		all.MachinePools:      trimMachinePool,
		all.MachineDrainRules: trim,
	} {
		if err := informer.SetTransform(transform); err != nil {
			return nil, err
		}
		all.start = append(all.start, func(ctx context.Context) { go informer.RunWithContext(ctx) })
	}

	// The operator may read these objects by name only.
	byName := func(name string) kubeinformers.SharedInformerFactory {
		factory := named(clients.kube, options.Namespace, name, options.ResyncPeriod)
		all.start = append(all.start, factory.StartWithContext)
		return factory
	}
	all.shards = byName(options.ShardsConfigMap).Core().V1().ConfigMaps().Informer()
	all.ca = byName(options.CAConfigMap).Core().V1().ConfigMaps().Informer()
	all.nonce = byName(options.NonceSecret).Core().V1().Secrets().Informer()
	all.key = byName(options.KeySecret).Core().V1().Secrets().Informer()
	all.cert = byName(options.CertSecret).Core().V1().Secrets().Informer()
	all.webhookCert = byName(options.WebhookSecret).Core().V1().Secrets().Informer()
	// A webhook configuration has no namespace; the factory ignores its own.
	all.webhookConfiguration = byName(options.WebhookConfiguration).Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()
	all.Kubeconfig = byName(cluster.SecretName(options.ClusterName())).Core().V1().Secrets().Informer()
	return all, nil
}

// run starts all informers. They stop when ctx is done.
func (i *informers) run(ctx context.Context) {
	for _, start := range i.start {
		start(ctx)
	}
}

func named(client kubernetes.Interface, namespace, name string, resync time.Duration) kubeinformers.SharedInformerFactory {
	return kubeinformers.NewSharedInformerFactoryWithOptions(client, resync,
		kubeinformers.WithNamespace(namespace),
		kubeinformers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		}))
}

// trim drops managedFields, shares the strings that are equal in most objects of a kind, and keeps
// conditions without spare capacity. The decoder allocates a string for each object, and doubles a
// slice that is full. A pool keeps whether the operator owns its spec.
func trim(obj any) (any, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil //nolint:nilerr // only objects are trimmed
	}
	if _, ok := obj.(*v1beta1.NstanceMachinePool); ok && capi.OperatorOwnsSpec(object.GetManagedFields()) {
		object.SetManagedFields(specOfOperator)
	} else {
		object.SetManagedFields(nil)
	}
	shareMetadata(object)
	switch object := obj.(type) {
	case *v1beta1.NstanceMachinePool:
		object.Status.Conditions = shareConditions(object.Status.Conditions)
	case *v1beta1.NstanceShardGroup:
		object.Status.Conditions = shareConditions(object.Status.Conditions)
	case *v1beta1.NstanceMachine:
		object.Status.Conditions = shareConditions(object.Status.Conditions)
	}
	return obj, nil
}

// trimMachinePool keeps what capi.TrimMachinePool keeps, and shares it like trim.
func trimMachinePool(obj any) (any, error) {
	trimmed, err := capi.TrimMachinePool(obj)
	if machinePool, ok := trimmed.(*clusterv1.MachinePool); ok {
		shareMetadata(machinePool)
		machinePool.Spec.Template.Labels = sharedLabels(machinePool.Spec.Template.Labels)
	}
	return trimmed, err
}

// specOfOperator are the managed fields of a cached pool whose spec the operator owns.
var specOfOperator = []metav1.ManagedFieldsEntry{{
	Manager: capi.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
}}

func shareMetadata(object metav1.Object) {
	object.SetNamespace(shared(object.GetNamespace()))
	object.SetLabels(sharedLabels(object.GetLabels()))
	for i, finalizer := range object.GetFinalizers() {
		object.GetFinalizers()[i] = shared(finalizer)
	}
	for i, owner := range object.GetOwnerReferences() {
		object.GetOwnerReferences()[i].APIVersion = shared(owner.APIVersion)
		object.GetOwnerReferences()[i].Kind = shared(owner.Kind)
	}
}

func shareConditions(conditions []metav1.Condition) []metav1.Condition {
	if cap(conditions) > len(conditions) {
		conditions = slices.Clone(conditions)
	}
	for i := range conditions {
		condition := &conditions[i]
		condition.Type = shared(condition.Type)
		condition.Status = shared(condition.Status)
		condition.Reason = shared(condition.Reason)
	}
	return conditions
}

// recentLabels has the labels of the last objects, by their text. The shard groups of a pool have
// equal labels, and so have the templates of most MachinePools.
var recentLabels = lru.New(256)

// maxSharedLabels bounds what recentLabels may take.
const maxSharedLabels = 8

// sharedLabels returns a map that objects with equal labels share, own if these are many. An object
// in a cache, and so its labels, are never changed.
func sharedLabels(own map[string]string) map[string]string {
	if len(own) == 0 || len(own) > maxSharedLabels {
		return own
	}
	text := labels.Set(own).String()
	if known, ok := recentLabels.Get(text); ok {
		return known.(map[string]string)
	}
	kept := make(map[string]string, len(own))
	for key, value := range own {
		kept[shared(key)] = shared(value)
	}
	recentLabels.Add(text, kept)
	return kept
}

// shared returns a copy of s that all equal strings share.
func shared[S ~string](s S) S { return unique.Make(s).Value() }

// trimNode keeps only the fields of a Node that controllers read. A large cluster has many
// Nodes, and each changes every few seconds.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp, DeletionTimestamp: node.DeletionTimestamp,
		},
		Spec:   corev1.NodeSpec{ProviderID: node.Spec.ProviderID, Unschedulable: node.Spec.Unschedulable},
		Status: corev1.NodeStatus{Addresses: node.Status.Addresses},
	}
	for _, name := range []string{
		v1beta1.AnnotationCordonedFor, v1beta1.AnnotationDrainReason, v1beta1.AnnotationDeleteAt, v1beta1.AnnotationRemediateInstance,
		v1beta1.AnnotationNodeSettings, v1beta1.AnnotationScaleDownDisabled, scaledown.AnnotationDisabled,
	} {
		if value, ok := node.Annotations[name]; ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, name, value)
		}
	}
	if id, ok := node.Labels[v1beta1.LabelShard]; ok {
		kept.Labels = map[string]string{v1beta1.LabelShard: shared(id)}
	}
	nodesettings.Trim(kept, node)
	for _, condition := range node.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && slices.Contains(nodeProblems, condition.Type) {
			continue
		}
		kept.Status.Conditions = append(kept.Status.Conditions, corev1.NodeCondition{
			Type: shared(condition.Type), Status: shared(condition.Status), LastTransitionTime: condition.LastTransitionTime,
		})
	}
	return kept, nil
}

// nodeProblems are the conditions that every Node has, and that are False if it is healthy. A policy for
// remediation may name any other condition.
var nodeProblems = []corev1.NodeConditionType{
	corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable,
}

// backgroundInformer is an informer of the workload cluster. The operator starts before its
// cache is complete, so that it scales pools while that cluster is not reachable. The method
// HasSynced of the informer is unchanged.
type backgroundInformer struct {
	cache.SharedIndexInformer
}

// AddEventHandler adds a handler that the operator does not wait for.
func (i backgroundInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := i.SharedIndexInformer.AddEventHandler(handler)
	if err != nil {
		return nil, err
	}
	return backgroundRegistration{registration}, nil
}

// backgroundRegistration is a registration that counts as synced from the start.
type backgroundRegistration struct {
	cache.ResourceEventHandlerRegistration
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (backgroundRegistration) HasSynced() bool { return true }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r backgroundRegistration) HasSyncedChecker() cache.DoneChecker {
	return done(r.ResourceEventHandlerRegistration.HasSyncedChecker().Name())
}

// done is a DoneChecker that is done from the start; its value is its name.
type done string

// Name implements cache.DoneChecker.
func (d done) Name() string { return string(d) }

// Done implements cache.DoneChecker.
func (done) Done() <-chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}

// cachedKinds are the kinds from which the leader decides what to create and delete, except the
// kinds of a workload cluster.
func cachedKinds(clients *clients, informers *informers, namespace string) []election.CachedKind {
	nstance := clients.nstance.InfrastructureV1beta1()
	kinds := []election.CachedKind{
		{Name: "NstanceMachinePools", Cache: informers.Nstance.NstanceMachinePools().Informer(), List: election.Lister(nstance.NstanceMachinePools(namespace).List)},
		{Name: "NstanceShardGroups", Cache: informers.Nstance.NstanceShardGroups().Informer(), List: election.Lister(nstance.NstanceShardGroups(namespace).List)},
		{Name: "NstanceMachines", Cache: informers.Nstance.NstanceMachines().Informer(), List: election.Lister(nstance.NstanceMachines(namespace).List)},
		{Name: "MachinePools", Cache: informers.MachinePools, List: election.Lister(clients.capi.MachinePools(namespace).List)},
		{Name: "Machines", Cache: informers.Machines, List: election.Lister(clients.capi.Machines(namespace).List)},
	}
	if clients.workloadServer == "" {
		kinds = append(kinds, cachedNodes(clients, informers))
	}
	return kinds
}

func cachedNodes(clients *clients, informers *informers) election.CachedKind {
	return election.CachedKind{Name: "Nodes", Cache: informers.Nodes, List: election.Lister(clients.workload.Kube.CoreV1().Nodes().List)}
}
