// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
)

// BenchmarkDrains200 has a shard tell of 200 drains at once, of Nodes with two Pods
// each. It measures from the moment when a notice reaches the operator to the
// moments when the API server is asked to cordon the Node and to evict its first
// Pod, and counts what the operator asks the API server for.
func BenchmarkDrains200(b *testing.B) {
	const name, count, podsPerNode = "storm", 200, 2
	nodes := createGroup(b, steadyShard, name, count)
	createNamespace(b, name)
	var pods []*corev1.Pod
	nodeOf := map[string]string{}
	for i, node := range nodes {
		for k := range podsPerNode {
			pod := newPod(name, fmt.Sprintf("pod-%d-%d", i, k), node)
			pods, nodeOf[pod.Name] = append(pods, pod), node
		}
	}
	createPods(b, pods...)

	for b.Loop() {
		from := auditEnd(b)
		scale(b, name, 0)
		var drains []drain
		eventually(b, "all instances end", func(context.Context) error {
			drains = env.relays[steadyShard].drainsWith(in(name))
			ended := 0
			for _, d := range drains {
				if !d.Ended.IsZero() {
					ended++
				}
			}
			if ended < count {
				return fmt.Errorf("%d drains, %d ended", len(drains), ended)
			}
			return nil
		})
		requests := operatorRequests(b, from, func(r controlplane.Request) bool { return r.Resource != "leases" })
		watches, err := env.AuditLog().Requests(from, func(r controlplane.Request) bool {
			return r.User == nstance.OperatorUser && r.Verb == "watch" && r.Resource == "pods"
		})
		if err != nil {
			b.Fatal(err)
		}
		cordons, firstEvictions := map[string]time.Time{}, map[string]time.Time{}
		for _, r := range requests {
			switch {
			case r.Resource == "nodes" && r.Name != "" && isCordon(r.Name)(r):
				keepFirst(cordons, r.Name, r.Time)
			case isEviction(r) && r.Namespace == name:
				keepFirst(firstEvictions, nodeOf[r.Name], r.Time)
			}
		}
		for _, d := range drains {
			expectHonest(b, d)
		}
		b.ReportMetric(drains[count-1].Noticed.Sub(drains[0].Noticed).Seconds()*1000, "ms-between-notices")
		reportDelays(b, "cordon", drains, cordons)
		reportDelays(b, "eviction", drains, firstEvictions)
		reportRequests(b, requests, count)
		// Each is in the log when it begins and when it ends.
		b.ReportMetric(float64(len(watches))/2/count, "watch-pods/drain")
	}
}

func keepFirst(times map[string]time.Time, key string, at time.Time) {
	if first, found := times[key]; !found || at.Before(first) {
		times[key] = at
	}
}

// reportDelays reports how long after their notices the Nodes of drains had their
// turn.
func reportDelays(b *testing.B, what string, drains []drain, turns map[string]time.Time) {
	b.Helper()
	delays := make([]time.Duration, 0, len(drains))
	for _, d := range drains {
		turn, found := turns[d.Instance]
		if !found {
			b.Errorf("no %s of Node %s", what, d.Instance)
			continue
		}
		delays = append(delays, turn.Sub(d.Noticed))
	}
	if len(delays) == 0 {
		return
	}
	slices.Sort(delays)
	for _, percent := range []int{50, 99} {
		at := delays[(len(delays)-1)*percent/100]
		b.ReportMetric(float64(at.Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", what, percent))
	}
}

// reportRequests reports what a drain costs in requests to the API server. Watches
// are not among them.
func reportRequests(b *testing.B, requests []controlplane.Request, drains int) {
	b.Helper()
	counts := map[string]int{}
	for _, r := range requests {
		kind := r.Verb + "-" + r.Resource
		if r.Subresource != "" {
			kind += "." + r.Subresource
		}
		counts[kind]++
	}
	for kind, count := range counts {
		b.ReportMetric(float64(count)/float64(drains), kind+"/drain")
	}
	b.ReportMetric(float64(len(requests))/float64(drains), "requests/drain")
}
