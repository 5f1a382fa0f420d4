// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale_test

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/observe"
	"nstance.dev/operator/pkg/marekvs/scale"
	"nstance.dev/operator/pkg/marekvs/storetest"
)

// memory is what the operator forgets when it restarts.
type memory struct {
	rates   *observe.Rates
	history *observe.History
	nodes   *observe.Nodes
}

func newMemory() *memory {
	return &memory{observe.NewRates(10 * time.Second), observe.NewHistory(time.Minute), &observe.Nodes{}}
}

// observe reads the model as the operator reads a cluster.
func (w *walk) observe(memory *memory, window, sinceScale time.Duration) (*scale.Observation, *scale.Load, []scale.Volume) {
	o := &scale.Observation{
		Name: "demo", ReplicationFactor: storetest.Copies, Replicas: w.Replicas, StatusReplicas: int32(len(w.Pods)), Current: w.Observed == w.Generation,
		TemplateCurrent: true, CurrentRevision: "1", UpdateRevision: "1",
	}
	if !w.ReportsRounds {
		o.Settle = 30 * time.Second
	}
	readings, known := map[observe.Process]observe.Reading{}, map[int32]observe.Node{}
	for _, n := range w.Pods {
		pod := scale.Pod{Ordinal: n.Ordinal, Ready: n.Ready(), Terminating: n.Terminating, Revision: "1"}
		process := observe.Process{Pod: types.UID(strconv.Itoa(n.UID))}
		seen := observe.Node{Process: process, Terminating: n.Terminating}
		reading := observe.Reading{At: w.Now()}
		if pod.Sample = w.Sample(n); pod.Sample != nil {
			seen.Members = pod.Sample.Members
			if w.ReportsRounds {
				seen.Rounds = ptr.To(n.Rounds)
			}
			reading.Total = ptr.To(n.Commands)
		}
		if known[n.Ordinal] = seen; !n.Terminating {
			readings[process] = reading
		}
		o.Pods = append(o.Pods, pod)
	}
	memory.nodes.Observe(w.Now(), known)
	o.SinceChange = memory.nodes.SinceChange(w.Now())
	for i := range o.Pods {
		o.Pods[i].Rounds = memory.nodes.Rounds(known[o.Pods[i].Ordinal])
	}
	load := &scale.Load{SinceScale: &sinceScale}
	if load.Rate, load.Complete = memory.rates.Add(readings); load.Complete {
		memory.history.Add(w.Now(), window, load.Rate)
	} else {
		memory.history.Add(w.Now(), window, nil)
	}
	load.Peak = memory.history.Peak(w.Now(), window)
	var volumes []scale.Volume
	for ordinal := range w.Volumes {
		volumes = append(volumes, scale.Volume{Ordinal: ordinal})
	}
	return o, load, volumes
}
