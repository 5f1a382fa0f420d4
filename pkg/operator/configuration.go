// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	nstanceinformers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/registration"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/operator/shard/informer"
)

// caKey is the key of the CA in its ConfigMap.
const caKey = "ca.crt"

// configuration updates the endpoints of the connections and the operator's identity from
// their objects. A missing or invalid object changes nothing: the last valid configuration
// stays in effect.
type configuration struct {
	controller.Registrations

	connections *connpool.Pool
	identity    *identity.Identity
	recorder    events.EventRecorder

	mu        sync.Mutex
	endpoints map[string]shard.Endpoint
	ca        string
	cert      *corev1.Secret
	// leading is true on the leader, which records events.
	leading bool
	// problem is why the endpoints in shards, the last ConfigMap, are invalid; nil if they are
	// valid.
	problem error
	shards  *corev1.ConfigMap
	// handlers are called when the ConfigMap names other shards or other endpoints than
	// before.
	handlers []func(shard string)
}

// Shards returns the sorted ids of all configured shards. It includes shards with an
// invalid endpoint: their groups are unknown, which does not mean that they have no groups.
func (c *configuration) Shards() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := c.connections.Shards()
	if c.shards != nil {
		ids = append(ids, shard.Configured(c.shards.Data)...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Has reports whether a shard is configured, including one whose endpoint cannot
// be read.
func (c *configuration) Has(id string) bool { return slices.Contains(c.Shards(), id) }

// Endpoints returns the valid endpoints by shard id.
func (c *configuration) Endpoints() map[string]shard.Endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.endpoints)
}

// AddHandler registers handler, which receives an empty id: any shard may have
// changed. It must be called before watch.
func (c *configuration) AddHandler(handler func(shard string)) {
	c.handlers = append(c.handlers, handler)
}

// lead starts the recording of events, and records the present problem.
func (c *configuration) lead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = true
	c.recordProblem()
}

// newConfiguration registers the event handlers. The first events arrive after the
// informers were started, and so after all handlers were added.
func newConfiguration(
	ctx context.Context, connections *connpool.Pool, identity *identity.Identity, informers *informers, recorder events.EventRecorder,
) (*configuration, error) {
	c := &configuration{connections: connections, identity: identity, recorder: recorder}
	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "the shard endpoints", Informer: informers.shards,
			Handler: controller.OnChange(func(_, after *corev1.ConfigMap) { c.setEndpoints(ctx, after) })},
		controller.Watched{What: "the cluster CA", Informer: informers.ca,
			Handler: controller.OnChange(func(_, after *corev1.ConfigMap) { c.setCA(ctx, after) })},
		controller.Watched{What: "the client certificate", Informer: informers.cert,
			Handler: controller.OnChange(func(_, after *corev1.Secret) { c.setCert(ctx, after) })},
	)
	return c, err
}

func (c *configuration) setEndpoints(ctx context.Context, object *corev1.ConfigMap) {
	logger := klog.FromContext(ctx)
	if object == nil {
		logger.Info("ConfigMap with the shards was deleted, keeping its shards")
		return
	}
	endpoints, changed := c.readEndpoints(ctx, object)
	if !changed {
		return
	}
	// Without the lock, because the handlers read the shards.
	if endpoints != nil {
		c.connections.Set(endpoints)
		logger.Info("Shards configured", "shards", c.connections.Shards())
	}
	for _, handler := range c.handlers {
		handler("")
	}
}

// readEndpoints stores the content of the ConfigMap and reports whether it changed. It
// returns the endpoints if they changed too, and otherwise nil.
func (c *configuration) readEndpoints(ctx context.Context, object *corev1.ConfigMap) (changedEndpoints map[string]shard.Endpoint, changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards != nil && c.shards.UID == object.UID && maps.Equal(c.shards.Data, object.Data) {
		// The annotations may have changed.
		c.shards = object
		return nil, false
	}
	endpoints, err := shard.ParseEndpoints(object.Data)
	c.shards, c.problem = object, err
	if err != nil {
		klog.FromContext(ctx).Error(err, "The ConfigMap with the shards has invalid entries", "configMap", klog.KObj(object))
		c.recordProblem()
	}
	// A shard keeps its last valid endpoint while its entry is invalid.
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

// confirmed reports whether an administrator has confirmed that the server at an address
// belongs to a shard, and how to confirm it. A confirmation has no effect if the configured
// address has changed.
func (c *configuration) confirmed(id, address string) (confirmed bool, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards == nil || c.endpoints[id].Operator != address {
		return false, "the address has changed"
	}
	annotation := v1beta1.AnnotationConfirmAddress + id
	return c.shards.Annotations[annotation] == address, fmt.Sprintf("correct the address, or confirm it with the annotation %s=%s of the ConfigMap %s",
		annotation, address, c.shards.Name)
}

func (c *configuration) recordProblem() {
	if c.leading && c.problem != nil {
		controller.Warn(c.recorder, c.shards, "InvalidEndpoint", "Connect", c.problem.Error())
	}
}

// errorReported records an error that a shard reports about itself, and not about one
// group, as an event of the ConfigMap that names the shard.
func (c *configuration) errorReported(id string, event shard.ErrorEvent) {
	if event.Group != "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards != nil {
		controller.WarnAbout(c.recorder, c.shards, id, "ShardError", "Watch", fmt.Sprintf("%s: %s", id, event.Message))
	}
}

func (c *configuration) setCA(ctx context.Context, object *corev1.ConfigMap) {
	if object == nil || object.Data[caKey] == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ca = object.Data[caKey]
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
	c.cert = object
	c.setIdentity(ctx)
}

func (c *configuration) setIdentity(ctx context.Context) {
	if c.ca == "" || c.cert == nil {
		return
	}
	trusted := registration.TrustedCA(c.ca, c.cert)
	if err := c.identity.Set(c.cert.Data[corev1.TLSCertKey], c.cert.Data[corev1.TLSPrivateKeyKey], []byte(trusted)); err != nil {
		klog.FromContext(ctx).Error(err, "The client certificate or the cluster CA is not valid, keeping the last one")
	}
}

// knownInstances returns a function that returns the instances in the status of a namespace's
// objects, by shard.
func knownInstances(nstance nstanceinformers.Interface, namespace string) func() map[string]informer.Known {
	shardGroups := nstance.NstanceShardGroups().Lister().NstanceShardGroups(namespace)
	machines := nstance.NstanceMachines().Lister().NstanceMachines(namespace)
	return func() map[string]informer.Known {
		known := map[string]informer.Known{}
		// The lister of a cache returns no errors.
		groups, _ := shardGroups.List(labels.Everything())
		for _, group := range groups {
			shard := known[string(group.Spec.Shard)]
			shard.ProviderIDs = append(shard.ProviderIDs, group.Status.ProviderIDs...)
			known[string(group.Spec.Shard)] = shard
		}
		all, _ := machines.List(labels.Everything())
		for _, machine := range all {
			if id, instance := onDemandInstance(machine); instance != "" {
				shard := known[id]
				shard.OnDemand = append(shard.OnDemand, instance)
				known[id] = shard
			}
		}
		return known
	}
}

// onDemandInstance returns the shard and the id of the on-demand instance of an
// NstanceMachine, "" if it has no instance. A restored object may have them only in its
// annotations.
func onDemandInstance(machine *v1beta1.NstanceMachine) (shard, instance string) {
	if meta.IsStatusConditionTrue(machine.Status.Conditions, v1beta1.ConditionServerDeleted) {
		return "", ""
	}
	requested, _, _ := strings.Cut(machine.Annotations[v1beta1.AnnotationRequest], "/")
	if machine.Status.RequestID != "" {
		requested = machine.Status.Shard
	}
	if requested == "" {
		return "", ""
	}
	return requested, cmp.Or(machine.Status.InstanceID, machine.Annotations[v1beta1.AnnotationInstanceID])
}
