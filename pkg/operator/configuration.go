// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	// leading tells whether this process is the one that records events.
	leading bool
	// wrong is what is wrong with shards, the ConfigMap that endpoints were last
	// read from; nil when nothing is.
	wrong  error
	shards *corev1.ConfigMap
	// onShards is called when the ConfigMap names other shards than before, or
	// the same in another way.
	onShards func()
}

// Shards are the ids of all shards that are configured, in their order, those
// whose endpoint cannot be read included: nothing is known of them, which is not
// the same as their not being there.
func (c *configuration) Shards() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := c.pool.Shards()
	if c.shards != nil {
		ids = append(ids, shard.Configured(c.shards.Data)...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// lead has trouble recorded as events from now on, present trouble included.
func (c *configuration) lead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = true
	c.recordWrong()
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
	logger := klog.FromContext(ctx)
	if object == nil {
		logger.Info("ConfigMap with the shards is gone, keeping the shards it had")
		return
	}
	endpoints, news := c.readEndpoints(ctx, object)
	if !news {
		return
	}
	// Without the lock: those who are told ask for the shards.
	if endpoints != nil {
		c.pool.Set(endpoints)
		logger.Info("Shards configured", "shards", c.pool.Shards())
	}
	if c.onShards != nil {
		c.onShards()
	}
}

// readEndpoints takes over what the ConfigMap says. It tells whether that is
// anything new, and returns the endpoints if they are others than before.
func (c *configuration) readEndpoints(ctx context.Context, object *corev1.ConfigMap) (changed map[string]shard.Endpoint, news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards != nil && c.shards.UID == object.UID && maps.Equal(c.shards.Data, object.Data) {
		return nil, false
	}
	endpoints, err := shard.ParseEndpoints(object.Data)
	c.shards, c.wrong = object, err
	if err != nil {
		klog.FromContext(ctx).Error(err, "Wrong entries in the ConfigMap with the shards", "configMap", klog.KObj(object))
		c.recordWrong()
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
		return nil, true
	}
	c.endpoints = endpoints
	return endpoints, true
}

func (c *configuration) recordWrong() {
	if c.leading && c.wrong != nil {
		controller.Warn(c.recorder, c.shards, "InvalidEndpoint", "Connect", c.wrong.Error())
	}
}

// shardFailed reports what a shard's server says about itself and not about one
// group, on the ConfigMap that names the shard.
func (c *configuration) shardFailed(id, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards != nil {
		controller.Warn(c.recorder, c.shards, "ShardError", "Watch", fmt.Sprintf("%s: %s", id, message))
	}
}

func (c *configuration) setCA(ctx context.Context, object *corev1.ConfigMap) {
	if object == nil || object.Data[caKey] == "" {
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
	cert, key := object.Data[corev1.TLSCertKey], object.Data[corev1.TLSPrivateKeyKey]
	if len(cert) == 0 || len(key) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cert, c.key = cert, key
	c.setIdentity(ctx)
}

func (c *configuration) setIdentity(ctx context.Context) {
	if c.ca == nil || c.cert == nil {
		return
	}
	if err := c.identity.Set(c.cert, c.key, c.ca); err != nil {
		klog.FromContext(ctx).Error(err, "Client certificate or cluster CA cannot be used, keeping the last one")
	}
}
