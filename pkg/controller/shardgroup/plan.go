// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// observation is what the caches say about a group at the moment of a sync.
type observation struct {
	// configured: the shard is in the configuration.
	configured bool
	// synced: the groups of the shard are known completely.
	synced bool
	// reachable: the shard is connected now; lost is why it is not.
	reachable bool
	lost      error
	// group is the group as the shard reports it, nil when it has none. While
	// synced is false nil means nothing.
	group *shard.Group
	// paused is what pauses the group, "" when nothing does.
	paused string
	// failure is what the shard's provider last said, "" when that is over.
	failure string
	drains  drains
}

// drains is how many instances of a group are being drained, how many of these
// do not get on, and why.
type drains struct {
	draining, blocked int
	message           string
}

// rejection is a configuration that a shard has refused. It is not tried again
// until the spec or the server's group changes, or until has come.
type rejection struct {
	generation int64
	etag       string
	until      time.Time
	message    string
}

// step is the one call, if any, that a sync makes to the shard.
type step int

const (
	// nothing: the group is in order, or nothing can be said about it.
	nothing step = iota
	// upsert: the group differs from the spec.
	upsert
	// remove: the shard group is being deleted.
	remove
)

// plan decides which call brings the group nearer to what object says. It never
// acts on missing information: without a synced and connected shard it decides
// for nothing.
func plan(object *v1beta1.NstanceShardGroup, seen observation, refused *rejection, now time.Time) step {
	switch {
	case !seen.configured || !seen.synced || !seen.reachable || seen.paused != "":
		return nothing
	case !object.DeletionTimestamp.IsZero():
		if !slices.Contains(object.Finalizers, v1beta1.FinalizerShardGroup) || seen.group != nil && seen.group.Deleting {
			return nothing
		}
		return remove
	case seen.group != nil && inOrder(&object.Spec, seen.group):
		return nothing
	case refused.holds(object.Generation, seen.group, now):
		return nothing
	default:
		return upsert
	}
}

// confirmed tells whether a shard that has taken the deletion of a group has also
// confirmed it: it no longer lists the group, or lists it as its own configuration
// has it. Until then instances of the group may run, and their ids must not
// leave the pool (Cluster API deletes the Nodes of ids that do).
func confirmed(group *shard.Group) bool { return group == nil || group.Static }

// holds tells whether the refused configuration is still the one that would be
// sent.
func (r *rejection) holds(generation int64, group *shard.Group, now time.Time) bool {
	return r != nil && r.generation == generation && r.etag == etag(group) && now.Before(r.until)
}

func etag(group *shard.Group) string {
	if group == nil {
		return ""
	}
	return group.ETag
}

// inOrder tells whether the group that the server reports is what spec asks
// for. What spec leaves out is the server's to choose, and vars that the server
// adds by itself do not count. A server that lists no instances knows of none that
// go first, and telling it again would change nothing.
func inOrder(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) bool {
	if group.Size != spec.Size || group.Deleting {
		return false
	}
	if group.ListsInstances && !slices.Equal(spec.RemoveFirst, group.RemoveFirst) {
		return false
	}
	if spec.InstanceType != "" && spec.InstanceType != group.InstanceType {
		return false
	}
	for name, value := range spec.Vars {
		if got, ok := group.Vars[name]; !ok || got != value {
			return false
		}
	}
	if group.Static {
		return true
	}
	if spec.Template != "" && spec.Template != group.Template {
		return false
	}
	return len(spec.Subnets) == 0 || slices.Equal(subnets(spec), group.Subnets)
}

// wanted is the whole configuration to send. Template and subnets of a static
// group are the server's own and it refuses them.
func wanted(spec *v1beta1.NstanceShardGroupSpec, group *shard.Group) shard.GroupConfig {
	config := shard.GroupConfig{
		Size:         spec.Size,
		InstanceType: spec.InstanceType,
		Vars:         spec.Vars,
		RemoveFirst:  spec.RemoveFirst,
	}
	if group == nil || !group.Static {
		config.Template = spec.Template
		config.Subnets = subnets(spec)
	}
	return config
}

func subnets(spec *v1beta1.NstanceShardGroupSpec) []string {
	if len(spec.Subnets) == 0 {
		return nil
	}
	ids := make([]string, len(spec.Subnets))
	for i, id := range spec.Subnets {
		ids[i] = string(id)
	}
	return ids
}

// outcome is what came of the call.
type outcome struct {
	step step
	err  error
	now  metav1.Time
}
