// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// MachineDrainRuleClient reads and writes the MachineDrainRules of one namespace.
type MachineDrainRuleClient = gentype.ClientWithList[*clusterv1.MachineDrainRule, *clusterv1.MachineDrainRuleList]

// MachineDrainRules returns the client for the MachineDrainRules of namespace.
func (c *Client) MachineDrainRules(namespace string) *MachineDrainRuleClient {
	return gentype.NewClientWithList[*clusterv1.MachineDrainRule, *clusterv1.MachineDrainRuleList](
		"machinedrainrules", c.rest, c.codec, namespace,
		func() *clusterv1.MachineDrainRule { return &clusterv1.MachineDrainRule{} },
		func() *clusterv1.MachineDrainRuleList { return &clusterv1.MachineDrainRuleList{} })
}

// NewMachineDrainRuleInformer returns an informer of the MachineDrainRules of namespace. The kind
// may be missing, and the client may lack the right to read it: then there are no rules. resync
// is the resync period, 0 to disable resyncs.
func NewMachineDrainRuleInformer(client *Client, namespace string, resync time.Duration) cache.SharedIndexInformer {
	rules := client.MachineDrainRules(namespace)
	informer := newInformer(client, namespace, resync, resource[*clusterv1.MachineDrainRule]{
		name:    "machinedrainrules",
		example: &clusterv1.MachineDrainRule{},
		list:    func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return rules.List(ctx, o) },
		watch:   rules.Watch,
	})
	return newOptionalInformer(informer, "MachineDrainRules")
}

// optionalInformer is an informer of a kind that may be missing or may not be read. Its handlers
// count as synced when that is known. The informer tries again, so that it finds a kind that is
// installed later.
type optionalInformer struct {
	cache.SharedIndexInformer
	what        string
	unavailable chan struct{}
	setOnce     sync.Once
	// known is closed when the cache is complete or the kind is known to be unavailable.
	known chan struct{}
}

func newOptionalInformer(informer cache.SharedIndexInformer, what string) *optionalInformer {
	i := &optionalInformer{SharedIndexInformer: informer, what: what, unavailable: make(chan struct{}), known: make(chan struct{})}
	// It does not fail before the informer is started.
	if err := informer.SetWatchErrorHandlerWithContext(i.failed); err != nil {
		panic(err)
	}
	return i
}

// failed handles an error of the list or of the watch.
func (i *optionalInformer) failed(ctx context.Context, reflector *cache.Reflector, err error) {
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
		return
	}
	i.setOnce.Do(func() {
		klog.FromContext(ctx).Info("Kind cannot be read, and has no objects for the operator", "kind", i.what, "err", err)
		close(i.unavailable)
	})
}

// RunWithContext runs the informer until ctx is done.
func (i *optionalInformer) RunWithContext(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() {
		select {
		case <-i.HasSyncedChecker().Done():
		case <-i.unavailable:
		case <-ctx.Done():
			return
		}
		close(i.known)
	})
	i.SharedIndexInformer.RunWithContext(ctx)
	running.Wait()
}

// AddEventHandler adds a handler.
func (i *optionalInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := i.SharedIndexInformer.AddEventHandler(handler)
	if err != nil {
		return nil, err
	}
	return &optionalRegistration{ResourceEventHandlerRegistration: registration, informer: i}, nil
}

// optionalRegistration is a registration at an optionalInformer.
type optionalRegistration struct {
	cache.ResourceEventHandlerRegistration
	informer *optionalInformer
}

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r *optionalRegistration) HasSyncedChecker() cache.DoneChecker { return knownChecker{r.informer} }

// knownChecker is done when the objects of an informer are known.
type knownChecker struct{ informer *optionalInformer }

// Name implements cache.DoneChecker.
func (c knownChecker) Name() string { return c.informer.what }

// Done implements cache.DoneChecker.
func (c knownChecker) Done() <-chan struct{} { return c.informer.known }
