// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"nstance.dev/operator/pkg/plugin/status"
)

// openUpTo is the number of instances up to which the table of a pool is open at first.
const openUpTo = 20

// notYet is the state of an instance that is wanted and not reported by its shard.
const notYet = "wanted, not reported"

// notReported is why a number is unknown if no object has it.
const notReported = "not reported yet"

// poolView is a pool.
type poolView struct {
	// Key identifies it on the page.
	Key, Name  string
	State      badge
	Figures    []figure
	Conditions []conditionView
	Shards     []shardView
	// ShardsUnknown is why the shards are not known.
	ShardsUnknown string
	Instances     []instanceView
	Open          bool
}

// poolLink is an entry of the index of pools.
type poolLink struct {
	Key, Name string
	State     badge
}

// conditionView is a condition that reports a problem.
type conditionView struct{ Object, Text string }

// shardView is a shard of a pool.
type shardView struct {
	Key, Name string
	State     badge
	Figures   []figure
	// Stale is set if the shard is not connected, so that its last report is shown.
	Stale bool
	Tiles []badge
	// Legend has the number of tiles of each state.
	Legend string
}

// instanceView is a row of the table of instances.
type instanceView struct {
	Key, Name, Shard, Node, Ready, Age string
	// Place is the instance type and the zone of the Node.
	Place string
	State badge
}

func poolViews(built *status.Status, options status.PrintOptions) []poolView {
	several := false
	for i := range built.Pools {
		several = several || built.Pools[i].Namespace != built.Pools[0].Namespace
	}
	views := make([]poolView, 0, len(built.Pools))
	for i := range built.Pools {
		pool := &built.Pools[i]
		v := newPool(pool, built.DrainsUnknown, options)
		if several {
			v.Name = pool.Namespace + "/" + pool.Name
		}
		views = append(views, v)
	}
	return views
}

// newPool returns the view of a pool. nodesUnknown is why it is not known which Nodes are
// Ready.
func newPool(pool *status.Pool, nodesUnknown string, options status.PrintOptions) poolView {
	v := poolView{
		Key: "pool-" + pool.Namespace + "-" + pool.Name, Name: pool.Name, ShardsUnknown: pool.ShardsUnknown,
		State:   badge{conditionsTone(pool.Problems), pool.Text()},
		Figures: figures(pool.Size, pool.Actual, pool.ReadyNodes, pool.Draining, nodesUnknown),
	}
	if len(pool.Candidates) > 0 {
		v.Figures = append(v.Figures, figure{"Types and markets", kinds(pool)})
	}
	if pool.ShardsUnknown != "" {
		v.State.Tone = worse(v.State.Tone, toneUnknown)
	}
	v.addConditions("NstanceMachinePool "+pool.Name, pool.Problems, options)
	for i := range pool.Shards {
		shard := &pool.Shards[i]
		v.Shards = append(v.Shards, newShard(v.Key, shard, nodesUnknown, options))
		v.addConditions("NstanceShardGroup "+shard.ShardGroup, shard.Problems, options)
		if shard.Lent != "" {
			v.Conditions = append(v.Conditions, conditionView{"NstanceShardGroup " + shard.ShardGroup, "instances lent, below 0 borrowed: " + shard.Lent})
		}
		for j := range shard.Instances {
			v.Instances = append(v.Instances, newInstance(v.Key, shard.Name, &shard.Instances[j], options))
		}
	}
	v.Open = len(v.Instances) <= openUpTo
	return v
}

func (v *poolView) addConditions(object string, conditions []status.Condition, options status.PrintOptions) {
	for i := range conditions {
		v.Conditions = append(v.Conditions, conditionView{object, conditions[i].Text(options)})
	}
}

func newShard(pool string, shard *status.Shard, nodesUnknown string, options status.PrintOptions) shardView {
	v := shardView{
		Key: pool + "-" + shard.Name, Name: shard.Name, Stale: shard.Reachable != "True",
		State:   badge{conditionsTone(shard.Problems), shard.Text(options)},
		Figures: figures(&shard.Size, shard.Actual, shard.ReadyNodes, shard.Draining, nodesUnknown),
	}
	if shard.UnidentifiedDrains > 0 {
		v.State.Tone = worse(v.State.Tone, toneWarning)
	}
	var states []string
	for i := range shard.Instances {
		instance := &shard.Instances[i]
		v.Tiles = append(v.Tiles, badge{instanceTone(instance), instance.Name + ": " + instance.Text(options)})
		states = append(states, instance.State)
	}
	for range awaited(shard) {
		v.Tiles = append(v.Tiles, badge{toneWanted, notYet})
		states = append(states, notYet)
	}
	v.Legend = counts(states)
	if v.Stale {
		v.Legend += ", as the shard has reported last"
	}
	return v
}

// counts returns how often each state occurs, in the order of the first occurrences.
func counts(states []string) string {
	var order []string
	number := map[string]int{}
	for _, state := range states {
		if number[state]++; number[state] == 1 {
			order = append(order, state)
		}
	}
	for i, state := range order {
		order[i] = strconv.Itoa(number[state]) + " " + state
	}
	return cmp.Or(strings.Join(order, ", "), "no instances")
}

// awaited returns the number of instances that a shard wants and does not report. Before the first report
// of the shard it is not known how many instances run.
func awaited(shard *status.Shard) int {
	if shard.Actual == nil {
		return 0
	}
	missing := int(shard.Size)
	for i := range shard.Instances {
		if stays(&shard.Instances[i]) {
			missing--
		}
	}
	return max(missing, 0)
}

// stays reports whether an instance counts for the size of its shard.
func stays(instance *status.Instance) bool {
	switch instance.State {
	case status.StateRunning, status.StatePending, status.StateNoNode, status.StateNotReady, status.StateAmbiguous, status.StateUnknown:
		return instance.DrainUnknown == ""
	}
	return false
}

func newInstance(pool, shard string, instance *status.Instance, options status.PrintOptions) instanceView {
	v := instanceView{
		Key: pool + "-" + shard + "-" + instance.Name, Name: instance.Name, Shard: shard,
		Node: nodeName(instance), Ready: "none", Place: "none", Age: age(instance, options),
		State: badge{instanceTone(instance), instance.Text(options)},
	}
	switch {
	case instance.Node != nil:
		v.Ready, v.Place = instance.Node.Ready, place(instance.Node)
	case instance.NodeUnknown != "":
		v.Ready, v.Place = "unknown", "unknown"
	}
	return v
}

// place returns the instance type and the zone of a Node, as far as its labels have them.
func place(node *status.Node) string {
	return cmp.Or(strings.Join(slices.DeleteFunc([]string{node.Type, node.Zone}, func(text string) bool { return text == "" }), " in "), "no labels")
}

func age(instance *status.Instance, options status.PrintOptions) string {
	if instance.Created.IsZero() {
		return "unknown"
	}
	return options.Age(instance.Created)
}

func nodeName(instance *status.Instance) string {
	switch {
	case instance.Node != nil:
		return instance.Node.Name
	case instance.NodeUnknown != "":
		return "unknown: " + instance.NodeUnknown
	case instance.State == status.StateAmbiguous:
		return "several"
	}
	return "none"
}

// figures are the columns of "kubectl nstance status".
func figures(size, actual, ready, draining *int32, nodesUnknown string) []figure {
	return []figure{
		{"Size", number(size, notReported)},
		{"Running", number(actual, notReported)},
		{"Nodes ready", number(ready, cmp.Or(nodesUnknown, notReported))},
		{"Draining", number(draining, notReported)},
	}
}

// kinds returns how many instances of a pool are of which instance type and market.
func kinds(pool *status.Pool) string {
	var texts []string
	for i := range pool.Candidates {
		if candidate := &pool.Candidates[i]; candidate.Instances > 0 {
			texts = append(texts, fmt.Sprintf("%d %s (%s)", candidate.Instances, candidate.Kind(), candidate.Name))
		}
	}
	if len(pool.CandidatesUnknown) > 0 {
		texts = append(texts, "unknown on "+strings.Join(pool.CandidatesUnknown, ", "))
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}

// number returns a number, or why it is not known.
func number(n *int32, why string) string {
	if n == nil {
		return "unknown: " + why
	}
	return strconv.Itoa(int(*n))
}

// singleView is an instance that belongs to no pool.
type singleView struct {
	Key, Name, Group, Shard, Node, Pod, Age string
	State                                   badge
	Conditions                              []string
}

func singleViews(built *status.Status, options status.PrintOptions) []singleView {
	var views []singleView
	for i := range built.OnDemand {
		machine := &built.OnDemand[i]
		v := singleView{
			Key: "single-" + machine.Namespace + "-" + machine.Machine, Name: machine.Machine, Group: machine.Group,
			Shard: cmp.Or(machine.Shard, "none"), Node: nodeName(&machine.Instance), Pod: cmp.Or(machine.Pod, "none"),
			Age:   age(&machine.Instance, options),
			State: badge{worse(instanceTone(&machine.Instance), conditionsTone(machine.Problems)), machine.Text(options)},
		}
		for j := range machine.Problems {
			v.Conditions = append(v.Conditions, machine.Problems[j].Text(options))
		}
		views = append(views, v)
	}
	return views
}
