// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
	"nstance.dev/operator/pkg/shard/identity"
	"nstance.dev/operator/pkg/shard/pool"
)

// caKey is the key of the CA in its ConfigMap.
const caKey = "ca.crt"

// configuration keeps the pool's endpoints and the operator's identity equal to
// the objects that hold them. An object that is missing or wrong changes
// nothing: what was last in force stays.
type configuration struct {
	pool     *pool.Pool
	identity *identity.Identity
	recorder events.EventRecorder

	mu        sync.Mutex
	endpoints map[string]shard.Endpoint
	ca        []byte
	cert, key []byte
}

// watch registers the handlers, and returns their registrations for waiting
// until they have seen the objects.
func (c *configuration) watch(ctx context.Context, informers *informers) ([]cache.ResourceEventHandlerRegistration, error) {
	var registrations []cache.ResourceEventHandlerRegistration
	for _, watched := range []struct {
		what     string
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{"shard endpoints", informers.shards, controller.OnChange(func(_, after *corev1.ConfigMap) { c.setEndpoints(ctx, after) })},
		{"cluster CA", informers.ca, controller.OnChange(func(_, after *corev1.ConfigMap) { c.setCA(ctx, after) })},
		{"client certificate", informers.cert, controller.OnChange(func(_, after *corev1.Secret) { c.setCert(ctx, after) })},
	} {
		registration, err := watched.informer.AddEventHandler(watched.handler)
		if err != nil {
			return nil, fmt.Errorf("watch the %s: %w", watched.what, err)
		}
		registrations = append(registrations, registration)
	}
	return registrations, nil
}

func (c *configuration) setEndpoints(ctx context.Context, object *corev1.ConfigMap) {
	if object == nil {
		klog.FromContext(ctx).Info("ConfigMap with the shards is gone, keeping the shards it had")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	endpoints, err := shard.ParseEndpoints(object.Data)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Wrong entries in the ConfigMap with the shards", "configMap", klog.KObj(object))
		c.recorder.Eventf(object, nil, corev1.EventTypeWarning, "InvalidEndpoint", "Connect", "%s", err)
	}
	// A shard whose entry became unreadable is still there.
	for id, endpoint := range c.endpoints {
		if _, named := object.Data[id]; named {
			if _, ok := endpoints[id]; !ok {
				endpoints[id] = endpoint
			}
		}
	}
	if maps.Equal(endpoints, c.endpoints) {
		return
	}
	c.endpoints = endpoints
	c.pool.Set(endpoints)
	klog.FromContext(ctx).Info("Shards configured", "shards", c.pool.Shards())
}

func (c *configuration) setCA(ctx context.Context, object *corev1.ConfigMap) {
	if object == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ca = []byte(object.Data[caKey])
	c.setIdentity(ctx)
}

func (c *configuration) setCert(ctx context.Context, object *corev1.Secret) {
	if object == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cert, c.key = object.Data[corev1.TLSCertKey], object.Data[corev1.TLSPrivateKeyKey]
	c.setIdentity(ctx)
}

func (c *configuration) setIdentity(ctx context.Context) {
	if len(c.ca) == 0 || len(c.cert) == 0 || len(c.key) == 0 {
		return
	}
	if err := c.identity.Set(c.cert, c.key, c.ca); err != nil {
		klog.FromContext(ctx).Error(err, "Client certificate or cluster CA cannot be used, keeping the last one")
	}
}
