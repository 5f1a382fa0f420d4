// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// observed returns the observation of an NstanceMachine without problems.
func observed(nstanceMachine *v1beta1.NstanceMachine) observation {
	return observation{
		nstanceMachine: nstanceMachine, location: locate(nstanceMachine),
		machine: newMachine(nstanceMachine.Name), cluster: newCluster(),
		configured: true, reachable: true, etag: "1", session: 1, now: now,
	}
}

func TestPlan(t *testing.T) {
	bare := func() observation { return observed(newNstanceMachine("m")) }
	verified := syncState{verifiedSession: 1}
	deleted := &shard.DeletionNotice{State: shard.Deleted}
	tests := map[string]struct {
		seen   observation
		state  syncState
		change func(*observation)
		want   step
		reason string
		wait   time.Duration
	}{
		"a new one":                   {seen: bare(), want: assignShard},
		"only the finalizer":          {seen: observed(withFinalizer(newNstanceMachine("m"))), want: assignShard},
		"with a shard":                {seen: observed(withShard(newNstanceMachine("m"))), want: createInstance},
		"with a shard, disconnected":  {seen: observed(withShard(newNstanceMachine("m"))), change: isDisconnected, reason: v1beta1.ReasonShardUnreachable},
		"with a shard, shard unknown": {seen: observed(withShard(newNstanceMachine("m"))), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"a rejection": {seen: observed(withShard(newNstanceMachine("m"))),
			state: syncState{rejection: &rejection{etag: "1", until: now.Add(time.Minute), reason: v1beta1.ReasonInstanceRefused}}, reason: v1beta1.ReasonInstanceRefused, wait: time.Minute},
		"an old rejection": {seen: observed(withShard(newNstanceMachine("m"))),
			state: syncState{rejection: &rejection{etag: "1", until: now}}, want: createInstance},
		"a rejection of another etag": {seen: observed(withShard(newNstanceMachine("m"))),
			state: syncState{rejection: &rejection{etag: "2", until: now.Add(time.Minute)}}, want: createInstance},
		"of a pool: listed":                           {seen: observed(newPoolMember("m")), change: isListed(shard.InstancePending), want: useListed},
		"of a pool: listed, disconnected":             {seen: observed(newPoolMember("m")), change: func(o *observation) { isListed(shard.InstancePending)(o); isDisconnected(o) }, reason: v1beta1.ReasonShardUnreachable},
		"of a pool: listed as running":                {seen: observed(newPoolMember("m")), state: verified, change: isListed(shard.InstanceRunning), want: useListed},
		"of a pool: listed as running, disconnected":  {seen: observed(newPoolMember("m")), change: func(o *observation) { isListed(shard.InstanceRunning)(o); isDisconnected(o) }, want: useListed},
		"of a pool: listed, notice of deletion":       {seen: observed(newPoolMember("m")), change: func(o *observation) { isListed(shard.InstanceRunning)(o); o.notice = deleted }},
		"of a pool: runs, no lists":                   {seen: observed(runningPoolMember("m")), state: verified},
		"of a pool: runs, no lists, a restart":        {seen: observed(runningPoolMember("m")), want: queryInstance},
		"of a pool: new, no lists":                    {seen: observed(newPoolMember("m")), state: verified, want: queryInstance},
		"of a pool: runs, missing":                    {seen: observed(runningPoolMember("m")), state: verified, change: isMissing, want: queryInstance},
		"of a pool: runs, missing, just queried":      {seen: observed(runningPoolMember("m")), state: syncState{queries: retry{next: now.Add(3 * time.Second)}}, change: isMissing, wait: 3 * time.Second},
		"of a pool: runs, missing, disconnected":      {seen: observed(runningPoolMember("m")), change: func(o *observation) { isMissing(o); isDisconnected(o) }},
		"of a pool: new, missing, disconnected":       {seen: observed(newPoolMember("m")), change: func(o *observation) { isMissing(o); isDisconnected(o) }, reason: v1beta1.ReasonShardUnreachable},
		"of a pool: its Machine was deleted":          {seen: observed(runningPoolMember("m")), state: verified, change: func(o *observation) { o.machine, o.machineDeleted = nil, true }},
		"of a pool: shard unknown":                    {seen: observed(newPoolMember("m")), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"of a pool: deleting, never reported":         {seen: observed(deleting(newPoolMember("m"))), want: deleteInstance},
		"of a pool: deleting, disconnected":           {seen: observed(deleting(runningPoolMember("m"))), change: isDisconnected, reason: v1beta1.ReasonShardUnreachable},
		"of a pool: deleting, notice of deletion":     {seen: observed(deleting(newPoolMember("m"))), change: func(o *observation) { o.notice = deleted }, want: removeFinalizer},
		"of a pool: deleting, without a shard":        {seen: observed(deleting(withoutShard(newPoolMember("m")))), change: isUnknown, want: removeFinalizer},
		"of a pool: deleted by its shard":             {seen: observed(withServerDeleted(runningPoolMember("m"))), want: deleteMachine},
		"of a pool: deleted by its shard, no Machine": {seen: observed(withServerDeleted(runningPoolMember("m"))), change: func(o *observation) { o.machine = nil }, want: deleteNstanceMachine},
		"of a pool by its label, with a request id":   {seen: observed(withPoolLabel(withShard(newNstanceMachine("m")))), want: createInstance},
		"a pause":                 {seen: bare(), change: func(o *observation) { o.paused = "a pause" }, reason: v1beta1.ReasonPaused},
		"a pause of a deletion":   {seen: observed(deleting(withInstance(newNstanceMachine("m"), "i-1"))), change: func(o *observation) { o.paused = "a pause" }, reason: v1beta1.ReasonPaused},
		"its Machine was deleted": {seen: bare(), change: func(o *observation) { o.machine, o.machineDeleted = nil, true }, want: deleteNstanceMachine},
		"its Machine was deleted, deleting": {seen: observed(deleting(withInstance(newNstanceMachine("m"), "i-1"))),
			change: func(o *observation) { o.machine, o.machineDeleted = nil, true }, want: deleteInstance},

		"one that does not run yet":                      {seen: observed(withInstance(newNstanceMachine("m"), "i-1")), state: verified, want: queryInstance},
		"one that was just queried":                      {seen: observed(withInstance(newNstanceMachine("m"), "i-1")), state: syncState{queries: retry{next: now.Add(3 * time.Second)}}, wait: 3 * time.Second},
		"one that runs":                                  {seen: observed(running(newNstanceMachine("m"), "i-1")), state: verified},
		"one that runs, after a restart":                 {seen: observed(running(newNstanceMachine("m"), "i-1")), want: queryInstance},
		"one that runs, in another session":              {seen: observed(running(newNstanceMachine("m"), "i-1")), state: verified, change: func(o *observation) { o.session = 2 }, want: queryInstance},
		"one that runs, before the watch was opened":     {seen: observed(running(newNstanceMachine("m"), "i-1")), change: func(o *observation) { o.session = 0 }},
		"one that runs, disconnected":                    {seen: observed(running(newNstanceMachine("m"), "i-1")), change: isDisconnected},
		"one that does not run, disconnected":            {seen: observed(withInstance(newNstanceMachine("m"), "i-1")), change: isDisconnected, reason: v1beta1.ReasonShardUnreachable},
		"one that runs, notice of deletion":              {seen: observed(running(newNstanceMachine("m"), "i-1")), change: func(o *observation) { o.notice = deleted }},
		"one that does not run yet, no Machine":          {seen: observed(withInstance(newNstanceMachine("m"), "i-1")), change: func(o *observation) { o.machine = nil }, want: queryInstance},
		"deleted by its shard":                           {seen: observed(withServerDeleted(running(newNstanceMachine("m"), "i-1"))), want: deleteMachine},
		"deleted by its shard, Machine is being deleted": {seen: observed(withServerDeleted(running(newNstanceMachine("m"), "i-1"))), change: func(o *observation) { o.machine.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }},
		"deleted by its shard, no Machine":               {seen: observed(withServerDeleted(running(newNstanceMachine("m"), "i-1"))), change: func(o *observation) { o.machine = nil }, want: deleteNstanceMachine},
		"deleted by its shard, disconnected":             {seen: observed(withServerDeleted(running(newNstanceMachine("m"), "i-1"))), change: isDisconnected, want: deleteMachine},
		"deleting: not requested":                        {seen: observed(deleting(withFinalizer(newNstanceMachine("m")))), want: removeFinalizer},
		"deleting: not requested, shard unknown":         {seen: observed(deleting(withFinalizer(newNstanceMachine("m")))), change: isUnknown, want: removeFinalizer},
		"deleting: perhaps requested":                    {seen: observed(deleting(withShard(newNstanceMachine("m")))), want: createInstance},
		"deleting: perhaps requested, disconnected":      {seen: observed(deleting(withShard(newNstanceMachine("m")))), change: isDisconnected, reason: v1beta1.ReasonShardUnreachable},
		"deleting: perhaps requested, shard unknown":     {seen: observed(deleting(withShard(newNstanceMachine("m")))), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"deleting: perhaps requested, rejection":         {seen: observed(deleting(withShard(newNstanceMachine("m")))), state: syncState{rejection: &rejection{etag: "1", until: now.Add(time.Minute)}}, want: createInstance},
		"deleting":                                       {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), want: deleteInstance},
		"deleting: just repeated":                        {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), state: syncState{deletions: retry{next: now.Add(time.Second)}}, wait: time.Second},
		"deleting: notice of deletion":                   {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), change: func(o *observation) { o.notice = deleted }, want: removeFinalizer},
		"deleting: notice of deletion, disconnected":     {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), change: func(o *observation) { o.notice = deleted; isDisconnected(o) }, want: removeFinalizer},
		"deleting: notice of termination":                {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), change: func(o *observation) { o.notice = &shard.DeletionNotice{State: shard.Deleting} }, want: deleteInstance},
		"deleting: deleted by its shard":                 {seen: observed(deleting(withServerDeleted(running(newNstanceMachine("m"), "i-1")))), want: removeFinalizer},
		"deleting: deleted by its shard, shard unknown":  {seen: observed(deleting(withServerDeleted(running(newNstanceMachine("m"), "i-1")))), change: isUnknown, want: removeFinalizer},
		"deleting: disconnected":                         {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), change: isDisconnected, reason: v1beta1.ReasonShardUnreachable},
		"deleting: shard not connected yet":              {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), change: func(o *observation) { o.reachable = false }, reason: v1beta1.ReasonNotSynced},
		"deleting: shard unknown":                        {seen: observed(deleting(running(newNstanceMachine("m"), "i-1"))), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"deleting: status and annotations are lost":      {seen: observed(deleting(withoutStatus(running(newNstanceMachine("m"), "i-1")))), reason: v1beta1.ReasonInstanceUnknown},
		"deleting: status and annotations are lost, no Machine": {seen: observed(deleting(withoutStatus(running(newNstanceMachine("m"), "i-1")))),
			change: func(o *observation) { o.machine = nil }, reason: v1beta1.ReasonInstanceUnknown},
		"no bootstrap data":                {seen: bare(), change: func(o *observation) { o.machine.Spec.Bootstrap.DataSecretName = nil }, reason: v1beta1.ReasonWaitingForMachine},
		"no Cluster":                       {seen: bare(), change: func(o *observation) { o.cluster = nil }, reason: v1beta1.ReasonWaitingForMachine},
		"a Cluster without infrastructure": {seen: bare(), change: func(o *observation) { o.cluster = &clusterv1.Cluster{} }, reason: v1beta1.ReasonWaitingForMachine},
		"with a shard, no Cluster":         {seen: observed(withShard(newNstanceMachine("m"))), change: func(o *observation) { o.cluster = nil }, reason: v1beta1.ReasonWaitingForMachine},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.change != nil {
				test.change(&test.seen)
			}
			got := plan(test.seen, test.state)
			reason := ""
			if got.problem != nil {
				reason = got.problem.reason
			}
			if got.step != test.want || reason != test.reason || got.wait != test.wait {
				t.Errorf("got step %d, %q, wait %s; want step %d, %q, wait %s", got.step, reason, got.wait, test.want, test.reason, test.wait)
			}
		})
	}
}

func isListed(state shard.InstanceState) func(*observation) {
	return func(seen *observation) {
		seen.listed = &shard.Instance{ID: seen.nstanceMachine.Name, State: state, ProviderID: "provider-m"}
	}
}

func isMissing(seen *observation) { seen.missing = true }
func isDisconnected(seen *observation) {
	seen.reachable, seen.lost = false, errors.New("connection refused")
}
func isUnknown(seen *observation) { seen.configured, seen.reachable = false, false }
