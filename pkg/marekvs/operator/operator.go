// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package operator starts the marekvs operator: clients, informers, leader election and the
// controller of clusters.
package operator

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/controller/daemon"
	"nstance.dev/operator/pkg/controller/election"
	"nstance.dev/operator/pkg/generated/clientset/versioned"
	"nstance.dev/operator/pkg/generated/informers/externalversions"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/cluster"
	"nstance.dev/operator/pkg/marekvs/observe"
)

// leaseName is the name of the Lease of the leader.
const leaseName = "marekvs-operator-leader-election"

// clients has the clients of the API server. Without the lease they refuse to write.
type clients struct {
	lease   *election.Lease
	kube    kubernetes.Interface
	marekvs versioned.Interface
}

func newClients(options *Options) (*clients, error) {
	config, err := daemon.APIServer(options.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load the configuration for the API server: %w", err)
	}
	// No client-side rate limit: the API server limits requests by priority and fairness
	// (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/).
	config.QPS = -1
	rest.AddUserAgent(config, v1alpha1.ManagerName)
	config.WarningHandlerWithContext = &warnings{}
	leases, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client for the lease: %w", err)
	}
	c := &clients{}
	if c.lease, err = election.New(leases, options.Namespace, leaseName, options.Timing); err != nil {
		return nil, err
	}
	config.Wrap(c.lease.Guard)
	builtIn := rest.CopyConfig(config)
	builtIn.ContentType = runtime.ContentTypeProtobuf
	builtIn.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if c.kube, err = kubernetes.NewForConfig(builtIn); err != nil {
		return nil, fmt.Errorf("make the client for built-in kinds: %w", err)
	}
	if c.marekvs, err = versioned.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make the client for MarekvsClusters: %w", err)
	}
	return c, nil
}

// Run runs the operator until ctx is done. It returns an error when it cannot start or when
// it lost the lease; the process must then exit.
func Run(ctx context.Context, options *Options) error {
	clients, err := newClients(options)
	if err != nil {
		return err
	}
	recorder, err := controller.NewRecorder(ctx, clients.kube, v1alpha1.ManagerName, v1alpha1.AddToScheme)
	if err != nil {
		return err
	}
	informers := newInformers(clients, options)
	clusters, err := cluster.New(cluster.Config{
		Kube:      clients.kube,
		Marekvs:   clients.marekvs.MarekvsV1alpha1(),
		Informers: informers.Informers,
		Scraper: observe.NewScraper(observe.ScrapeOptions{
			Port: int(options.MetricsPort), Timeout: options.ScrapeTimeout, Parallel: options.ScrapeParallel,
		}),
		Recorder:   recorder,
		Clock:      clock.RealClock{},
		Children:   children.Options{ClusterDomain: options.ClusterDomain, MetricsPort: options.MetricsPort},
		Period:     options.SyncPeriod,
		Settle:     options.SettleTime,
		RateWindow: options.RateWindow,
	})
	if err != nil {
		return err
	}
	health := daemon.NewHealth()
	if err := health.Serve(ctx, options.HTTPAddress, daemon.NewMetricsHandler("marekvs_operator", collectors(clusters)...)); err != nil {
		return err
	}
	informers.run(ctx)
	if !cache.WaitFor(ctx, "caches", clusters.HasSynced()...) {
		return nil
	}
	health.Synced.Store(true)
	klog.FromContext(ctx).Info("Caches are complete", "watchNamespace", options.WatchNamespace)
	return election.Lead(ctx, clients.lease, health.Watchdog, func(ctx context.Context) error {
		if err := election.CheckNotRestored(ctx, cachedKinds(clients, informers, options.WatchNamespace)); err != nil {
			return err
		}
		clusters.Run(ctx)
		return nil
	})
}

// collectors returns the metrics of the operator itself.
func collectors(clusters prometheus.Collector) []prometheus.Collector {
	return []prometheus.Collector{controller.SyncPanics, controller.SyncDuration, clusters}
}

// cachedKinds returns the kinds that decide about removals. Their caches are compared with
// the API server before the leader acts.
func cachedKinds(clients *clients, informers *informers, namespace string) []election.CachedKind {
	return []election.CachedKind{
		{Name: "MarekvsClusters", Cache: informers.Clusters, List: election.Lister(clients.marekvs.MarekvsV1alpha1().MarekvsClusters(namespace).List)},
		{Name: "StatefulSets", Cache: informers.StatefulSets, List: election.Lister(clients.kube.AppsV1().StatefulSets(namespace).List)},
		{Name: "Pods", Cache: informers.Pods, List: election.Lister(clients.kube.CoreV1().Pods(namespace).List)},
	}
}

// informers has the informers of all kinds that the operator reads.
type informers struct {
	cluster.Informers

	start []func(context.Context)
}

func newInformers(clients *clients, options *Options) *informers {
	kinds := externalversions.NewSharedInformerFactoryWithOptions(clients.marekvs, options.ResyncPeriod,
		externalversions.WithNamespace(options.WatchNamespace))
	ours := kubeinformers.NewSharedInformerFactoryWithOptions(clients.kube, options.ResyncPeriod,
		kubeinformers.WithNamespace(options.WatchNamespace),
		kubeinformers.WithTransform(trim),
		kubeinformers.WithTweakListOptions(func(list *metav1.ListOptions) {
			list.LabelSelector = labels.SelectorFromSet(labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ManagerName}).String()
		}))
	all := &informers{Informers: cluster.Informers{
		Clusters:     kinds.Marekvs().V1alpha1().MarekvsClusters().Informer(),
		StatefulSets: ours.Apps().V1().StatefulSets().Informer(),
		Services:     ours.Core().V1().Services().Informer(),
		Budgets:      ours.Policy().V1().PodDisruptionBudgets().Informer(),
		Pods:         ours.Core().V1().Pods().Informer(),
		Claims:       ours.Core().V1().PersistentVolumeClaims().Informer(),
	}}
	all.start = append(all.start, kinds.StartWithContext, ours.StartWithContext)
	return all
}

// run starts all informers. They stop when ctx is done.
func (i *informers) run(ctx context.Context) {
	for _, start := range i.start {
		start(ctx)
	}
}

// trim drops what the operator never reads, to save memory: managed fields, and most fields
// of a Pod.
func trim(obj any) (any, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil //nolint:nilerr // a tombstone is not trimmed
	}
	object.SetManagedFields(nil)
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
		OwnerReferences: pod.OwnerReferences, CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
	}}
	kept.Spec = children.Trim(&pod.Spec)
	kept.Status.PodIP, kept.Status.Phase = pod.Status.PodIP, pod.Status.Phase
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		kept.Status.ContainerStatuses = append(kept.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: status.Name, RestartCount: status.RestartCount, State: trimState(status.State), LastTerminationState: trimState(status.LastTerminationState),
		})
	}
	return kept, nil
}

// trimState keeps why a container waits, and whether it runs or has ended.
func trimState(state corev1.ContainerState) corev1.ContainerState {
	kept := corev1.ContainerState{Waiting: state.Waiting}
	if state.Running != nil {
		kept.Running = &corev1.ContainerStateRunning{}
	}
	if state.Terminated != nil {
		kept.Terminated = &corev1.ContainerStateTerminated{}
	}
	return kept
}

// maxWarnings limits the number of different warnings that are logged.
const maxWarnings = 100

// warnings logs each warning of the API server once. A newer API server warns at every
// write of a Service that PreferClose was renamed to PreferSameZone
// (https://kubernetes.io/docs/reference/networking/virtual-ips/#traffic-distribution).
type warnings struct {
	mu     sync.Mutex
	logged map[string]bool
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if w.first(code, text) {
		klog.FromContext(ctx).Info("The API server warned", "warning", text)
	}
}

// first reports whether a warning is new, and records it.
func (w *warnings) first(code int, text string) bool {
	// 299 is the only code that Kubernetes uses
	// (https://kubernetes.io/blog/2020/09/03/warnings/).
	if code != 299 || text == "" {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.logged[text] || len(w.logged) >= maxWarnings {
		return false
	}
	if w.logged == nil {
		w.logged = map[string]bool{}
	}
	w.logged[text] = true
	return true
}
