// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/cluster"
	"nstance.dev/operator/pkg/operator/internal/controllers/drain"
	"nstance.dev/operator/pkg/operator/internal/controllers/ondemand"
)

// informers watch everything in Kubernetes that the operator reads. Their caches omit
// fields that it does not read.
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
		all.Clusters:     trim,
		all.Machines:     trim,
		all.MachinePools: capi.TrimMachinePool,
	} {
		if err := informer.SetTransform(transform); err != nil {
			return nil, err
		}
		all.start = append(all.start, func(ctx context.Context) { go informer.RunWithContext(ctx) })
	}

	// The operator may read these objects by name only.
	one := func(name string) kubeinformers.SharedInformerFactory {
		factory := named(clients.kube, options.Namespace, name, options.ResyncPeriod)
		all.start = append(all.start, factory.StartWithContext)
		return factory
	}
	all.shards = one(options.ShardsConfigMap).Core().V1().ConfigMaps().Informer()
	all.ca = one(options.CAConfigMap).Core().V1().ConfigMaps().Informer()
	all.nonce = one(options.NonceSecret).Core().V1().Secrets().Informer()
	all.key = one(options.KeySecret).Core().V1().Secrets().Informer()
	all.cert = one(options.CertSecret).Core().V1().Secrets().Informer()
	all.webhookCert = one(options.WebhookSecret).Core().V1().Secrets().Informer()
	// The webhook configuration has no namespace; that of the factory is ignored.
	all.webhookConfiguration = one(options.WebhookConfiguration).Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()
	all.Kubeconfig = one(cluster.SecretName(options.ClusterName())).Core().V1().Secrets().Informer()
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
