// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package statemetrics exports the content of the operator's caches as metrics: the shards,
// their groups, the machines, and the caches themselves (docs/reference.md#metrics). The
// caches are read at each scrape, so that metrics are never older than the caches. No label
// has the name of a Node, a Pod or an instance: the number of series is bounded by groups ×
// shards.
package statemetrics

import (
	"cmp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	listers "nstance.dev/operator/pkg/generated/listers/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Links is implemented by informer.Groups.
type Links interface {
	// Link returns the state of the watch of groups.
	Link(shard string) shard.Link
}

// Notices is implemented by informer.Notices.
type Notices interface {
	// List returns the last notice of each instance of a shard.
	List(shard string) []shard.DeletionNotice
	// LastMessage returns when the watch of instances was opened or delivered its last event,
	// the zero time before the first opening.
	LastMessage(shard string) time.Time
}

// Groups is implemented by informer.Groups.
type Groups interface {
	Links
	Get(shard, key string) (shard.Group, bool)
	HasSynced(shard string) bool
	Reachable(shard string) (bool, error)
}

// Sources has the caches that a Collector reads.
type Sources struct {
	// Shards returns the ids of the configured shards.
	Shards      func() []string
	Groups      Groups
	Notices     Notices
	ShardGroups listers.NstanceShardGroupNamespaceLister
	Machines    listers.NstanceMachineNamespaceLister
}

// Collector collects the state of shards, groups and machines. It is registered on the leader
// only: standbys have no connections to shards, and would export each group again.
type Collector struct {
	sources Sources
}

// New returns a Collector that is not registered.
func New(sources Sources) *Collector { return &Collector{sources: sources} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{
		shardConnected, shardSynced, shardVerified, shardLimit, shardLastList, shardLastMessage, shardReconnects,
		groupDesired, groupActual, groupDraining, groupShortfall, groupCandidates, groupNotReady, machines,
	} {
		descriptions <- description
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	c.collectShards(metrics)
	c.collectGroups(metrics)
	c.collectMachines(metrics)
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nstance_operator_"+name, help, labels, nil)
}

func gauge(description *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
}

// seconds returns a time in seconds since 1970, 0 for the zero time.
func seconds(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return float64(at.UnixMilli()) / 1000
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

var (
	informerSynced  = newDesc("informer_synced", "1 if the cache of a resource is complete, otherwise 0.", "resource")
	informerVersion = newDesc("informer_resource_version",
		"Resource version that the cache of a resource has reached. It grows while the watch delivers events or bookmarks; missing before the first list.", "resource")
)

// Informers collects the state of informers, by resource, on every replica.
type Informers map[string]cache.SharedIndexInformer

// Describe implements prometheus.Collector.
func (Informers) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- informerSynced
	descriptions <- informerVersion
}

// Collect implements prometheus.Collector.
func (i Informers) Collect(metrics chan<- prometheus.Metric) {
	for resource, informer := range i {
		metrics <- gauge(informerSynced, number(informer.HasSynced()), resource)
		if version, ok := parseVersion(informer.LastSyncResourceVersion()); ok {
			metrics <- gauge(informerVersion, version, resource)
		}
	}
}

// parseVersion converts a resource version, which is a number unless the API server is
// unusual.
func parseVersion(version string) (float64, bool) {
	parsed, err := strconv.ParseUint(version, 10, 64)
	return float64(parsed), err == nil
}

var (
	shardConnected = newDesc("shard_connected",
		"1 while the watch of a shard's groups is open and the last list since then succeeded, otherwise 0.", "shard")
	shardSynced = newDesc("shard_synced",
		"1 once all groups of a shard were read since this leader connected to it, otherwise 0.", "shard")
	shardVerified = newDesc("shard_identity_verified",
		"1 while the server at the address of a shard is known to be that of the shard, 0 if it is another one; missing while no server responds.", "shard")
	shardLimit = newDesc("shard_limit_exceeded",
		"1 while nothing of a shard is used because it reports more than the operator keeps, by the limit; missing otherwise.", "shard", "limit")
	shardLastList = newDesc("shard_last_list_timestamp_seconds",
		"Time of the last list of a shard's groups, in seconds since 1970; 0 before the first.", "shard")
	shardLastMessage = newDesc("shard_last_stream_message_timestamp_seconds",
		"Time at which a watch of a shard was opened or has delivered its last event, in seconds since 1970, by stream: groups or instances; 0 before the first.", "shard", "stream")
	shardReconnects = newDesc("shard_reconnects_total",
		"How often the watch of a shard's groups was opened again.", "shard")
)

func (c *Collector) collectShards(metrics chan<- prometheus.Metric) {
	for _, id := range c.sources.Shards() {
		connected, reason := c.sources.Groups.Reachable(id)
		metrics <- gauge(shardConnected, number(connected), id)
		metrics <- gauge(shardSynced, number(c.sources.Groups.HasSynced(id)), id)
		switch {
		case connected:
			metrics <- gauge(shardVerified, 1, id)
		case shard.IsWrongServer(reason):
			metrics <- gauge(shardVerified, 0, id)
		}
		if limit := shard.Exceeded(reason); limit != "" {
			metrics <- gauge(shardLimit, 1, id, string(limit))
		}
		link := c.sources.Groups.Link(id)
		metrics <- gauge(shardLastList, seconds(link.LastList), id)
		metrics <- gauge(shardLastMessage, seconds(link.LastMessage), id, "groups")
		metrics <- gauge(shardLastMessage, seconds(c.sources.Notices.LastMessage(id)), id, "instances")
		metrics <- prometheus.MustNewConstMetric(shardReconnects, prometheus.CounterValue, float64(link.Reconnects), id)
	}
}

var (
	groupDesired = newDesc("group_desired_instances",
		"Managed instances that a shard is to have of a group: the size of its shard group.", "group", "shard")
	groupActual = newDesc("group_running_instances",
		"Running managed instances of a group, as its shard has reported last; missing before the first report.", "group", "shard")
	groupDraining = newDesc("group_draining_instances",
		"Instances of a group that wait for their drain.", "group", "shard")
	groupShortfall = newDesc("group_shortfall_instances",
		"Instances of a group that the provider of its shard does not create for lack of capacity or quota.", "group", "shard")
	groupCandidates = newDesc("group_candidate_instances",
		"Instances of a candidate of a group that are not being deleted, as its shard has reported last; missing without candidates and before the first report.",
		"group", "shard", "candidate")
	groupNotReady = newDesc("group_not_ready",
		"1 while the condition Ready of a shard group is not True, by its reason; missing otherwise.", "group", "shard", "reason")
)

// groupOnShard identifies a group on a shard.
type groupOnShard struct{ group, shard string }

func (c *Collector) collectGroups(metrics chan<- prometheus.Metric) {
	// The lister of a cache returns no errors.
	objects, _ := c.sources.ShardGroups.List(labels.Everything())
	draining := c.draining()
	for _, object := range objects {
		of := groupOnShard{string(object.Spec.Group), string(object.Spec.Shard)}
		metrics <- gauge(groupDesired, float64(object.Spec.Size), of.group, of.shard)
		metrics <- gauge(groupDraining, float64(draining[of]), of.group, of.shard)
		reported, found := c.sources.Groups.Get(of.shard, of.group)
		switch {
		case found:
			metrics <- gauge(groupActual, float64(reported.ActualSize), of.group, of.shard)
		case c.sources.Groups.HasSynced(of.shard):
			// The shard does not have the group.
			metrics <- gauge(groupActual, 0, of.group, of.shard)
		}
		metrics <- gauge(groupShortfall, float64(reported.Shortfall.Missing), of.group, of.shard)
		collectCandidates(metrics, of, object.Spec.Candidates, reported.CandidateUse)
		if reason := notReady(object); reason != "" {
			metrics <- gauge(groupNotReady, 1, of.group, of.shard, reason)
		}
	}
}

// collectCandidates collects the numbers of instances of the candidates of a shard group. A name that
// the shard group does not have is no label, whatever the shard reports.
func collectCandidates(metrics chan<- prometheus.Metric, of groupOnShard, candidates []v1beta1.ShardCandidate, use []shard.CandidateUse) {
	reported := make(map[string]int32, len(use))
	for _, used := range use {
		reported[used.Name] = used.Instances
	}
	for _, candidate := range candidates {
		name := string(candidate.Name)
		if instances, found := reported[name]; found {
			metrics <- gauge(groupCandidates, float64(instances), of.group, of.shard, name)
			// Two series with the same labels would make the whole scrape fail.
			delete(reported, name)
		}
	}
}

// draining returns the number of drains of each group.
func (c *Collector) draining() map[groupOnShard]int {
	counts := map[groupOnShard]int{}
	for _, id := range c.sources.Shards() {
		for _, notice := range c.sources.Notices.List(id) {
			if notice.State == shard.Draining {
				counts[groupOnShard{notice.Group, id}]++
			}
		}
	}
	return counts
}

// notReady returns the reason of the condition Ready, "" if it is True or not known yet.
func notReady(object *v1beta1.NstanceShardGroup) string {
	ready := meta.FindStatusCondition(object.Status.Conditions, v1beta1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return ""
	}
	return ready.Reason
}

var machines = newDesc("machines",
	"NstanceMachines by group, shard and state: creating without an instance, provisioning until the instance has run, running, not_running, or deleting. The shard is empty before one is selected; a state without machines is missing.",
	"group", "shard", "state")

// machineState has the labels of the metric of NstanceMachines.
type machineState struct {
	groupOnShard
	state string
}

func (c *Collector) collectMachines(metrics chan<- prometheus.Metric) {
	// The lister of a cache returns no errors.
	objects, _ := c.sources.Machines.List(labels.Everything())
	counts := map[machineState]int{}
	for _, machine := range objects {
		of := groupOnShard{string(machine.Spec.GroupRef.Name), cmp.Or(machine.Status.Shard, string(machine.Spec.Shard))}
		counts[machineState{of, stateOf(machine)}]++
	}
	for key, count := range counts {
		metrics <- gauge(machines, float64(count), key.group, key.shard, key.state)
	}
}

// stateOf returns the value of the label state for an NstanceMachine.
func stateOf(machine *v1beta1.NstanceMachine) string {
	switch {
	case machine.DeletionTimestamp != nil:
		return "deleting"
	case machine.Status.InstanceID == "":
		return "creating"
	case !ptr.Deref(machine.Status.Initialization.Provisioned, false):
		return "provisioning"
	case ptr.Deref(machine.Status.Ready, false):
		return "running"
	default:
		return "not_running"
	}
}
