// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package machinetemplate reports on each NstanceMachineTemplate what a Node of it will have,
// so that the cluster autoscaler can scale a MachineDeployment from zero
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-machine#autoscaling-from-zero).
package machinetemplate

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	clientset "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstancelisters "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// workers is the number of templates that are synced at once.
const workers = 2

// byGroup indexes templates by their group.
const byGroup = "group"

var indexers = cache.Indexers{byGroup: func(obj any) ([]string, error) {
	if template, ok := obj.(*v1beta1.NstanceMachineTemplate); ok {
		return []string{groupOf(template)}, nil
	}
	return nil, nil
}}

func groupOf(template *v1beta1.NstanceMachineTemplate) string {
	return string(template.Spec.Template.Spec.GroupRef.Name)
}

// Controller writes the status of the NstanceMachineTemplates of one namespace.
type Controller struct {
	controller.Registrations

	namespace string
	client    clientset.NstanceMachineTemplateInterface
	lister    nstancelisters.NstanceMachineTemplateNamespaceLister
	indexer   cache.Indexer
	shards    shard.Set
	groups    shard.Groups
	queue     *controller.Queue[cache.ObjectName]
	writes    *controller.WriteTracker
}

// New returns the controller and registers its handlers.
func New(d controllers.Dependencies) (*Controller, error) {
	templates := d.Informers.Nstance.NstanceMachineTemplates()
	c := &Controller{
		namespace: d.Namespace,
		client:    d.Nstance.NstanceMachineTemplates(d.Namespace),
		lister:    templates.Lister().NstanceMachineTemplates(d.Namespace),
		indexer:   templates.Informer().GetIndexer(),
		shards:    d.NamedShards,
		groups:    d.Groups,
		writes:    controller.NewWriteTracker(templates.Informer().GetStore()),
	}
	c.queue = controller.NewQueue("machinetemplate", c.sync)
	c.queue.SeedWith(c.keys)
	var err error
	c.Registrations, err = controller.Watch(
		controller.Watched{What: "NstanceMachineTemplates", Informer: templates.Informer(), Indexers: indexers,
			Handler: controller.OnChange(c.templateChanged)},
	)
	d.WatchShards(c.shardChanged, c.groupChanged)
	return c, err
}

// Run syncs templates until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.queue.Run(ctx, workers) }

func (c *Controller) templateChanged(before, after *v1beta1.NstanceMachineTemplate) {
	if after == nil {
		after = before
	}
	c.queue.Add(cache.MetaObjectToName(after))
}

// shardChanged enqueues all templates: the shard may have any group.
func (c *Controller) shardChanged(string) {
	for _, key := range c.keys() {
		c.queue.AddAfter(key, controller.BatchPeriod)
	}
}

func (c *Controller) groupChanged(_, key string) {
	for _, template := range controller.Indexed[v1beta1.NstanceMachineTemplate](c.indexer, byGroup, key) {
		c.queue.AddAfter(cache.MetaObjectToName(template), controller.BatchPeriod)
	}
}

// keys returns the keys of all templates.
func (c *Controller) keys() []cache.ObjectName {
	templates, err := c.lister.List(labels.Everything())
	if err != nil {
		// The lister of a cache returns no errors.
		panic(err)
	}
	keys := make([]cache.ObjectName, len(templates))
	for i, template := range templates {
		keys[i] = cache.MetaObjectToName(template)
	}
	return keys
}

// sync writes the status of a template if the shape of its Nodes is known and has changed. A
// shape that is not known changes nothing.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if !c.writes.CaughtUp(key) {
		return c.writes.Delay(key), nil
	}
	template, err := controller.GetCached(c.lister.Get, "NstanceMachineTemplate", key)
	if err != nil || template == nil {
		return 0, err
	}
	shape := c.shapeOf(template)
	if shape == nil {
		return 0, nil
	}
	status := v1beta1.NstanceMachineTemplateStatus{Capacity: controllers.CapacityOf(shape), NodeInfo: controllers.NodeInfoOf(shape)}
	if equality.Semantic.DeepEqual(status, template.Status) {
		return 0, nil
	}
	written, err := c.client.ApplyStatus(ctx, applyStatus(template, status), controllers.Apply)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("write the status of NstanceMachineTemplate %s: %w", klog.KObj(template), err)
	}
	c.writes.Record(written)
	return 0, nil
}

// shapeOf returns the shape that a Node of a template has at least, nil if it is not known: the
// groups of a shard were not read yet, no shard has the group, or the template has an instance
// type of its own, whose shape no shard reports.
func (c *Controller) shapeOf(template *v1beta1.NstanceMachineTemplate) *shard.NodeShape {
	spec := &template.Spec.Template.Spec
	if spec.InstanceType != "" {
		return nil
	}
	shards := c.shards.Shards()
	if spec.Shard != "" {
		shards = []string{string(spec.Shard)}
	}
	var shapes []*shard.NodeShape
	for _, id := range shards {
		if !c.groups.HasSynced(id) {
			return nil
		}
		if group, found := c.groups.Get(id, groupOf(template)); found && !group.Deleting {
			shapes = append(shapes, group.Shape)
		}
	}
	return controllers.CommonShape(shapes)
}

// applyStatus returns the status, all of which the operator owns.
func applyStatus(template *v1beta1.NstanceMachineTemplate, status v1beta1.NstanceMachineTemplateStatus) *applyv1beta1.NstanceMachineTemplateApplyConfiguration {
	return applyv1beta1.NstanceMachineTemplate(template.Name, template.Namespace).WithUID(template.UID).
		WithStatus(controller.ApplyConfiguration[applyv1beta1.NstanceMachineTemplateStatusApplyConfiguration](status))
}
