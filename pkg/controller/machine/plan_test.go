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
	"nstance.dev/operator/pkg/shard"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// observed is what a sync of machine sees when all is well.
func observed(machine *v1beta1.NstanceMachine) observation {
	return observation{
		machine: machine, owner: newOwner(machine.Name), cluster: newCluster(),
		configured: true, reachable: true, etag: "1", session: 1, now: now,
	}
}

func TestPlan(t *testing.T) {
	bare := func() observation { return observed(newMachine("m")) }
	verified := memory{verified: 1}
	gone := &shard.Notice{State: shard.Deleted}
	tests := map[string]struct {
		seen     observation
		recalled memory
		change   func(*observation)
		want     step
		reason   string
		wait     time.Duration
	}{
		"a new one":                          {seen: bare(), want: claim},
		"a finalizer alone is no claim":      {seen: observed(holding(newMachine("m"))), want: claim},
		"a claim":                            {seen: observed(claiming(newMachine("m"))), want: order},
		"a claim on a shard that is away":    {seen: observed(claiming(newMachine("m"))), change: isAway, reason: v1beta1.ReasonShardUnreachable},
		"a claim on a shard that is unknown": {seen: observed(claiming(newMachine("m"))), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"a refusal that holds": {seen: observed(claiming(newMachine("m"))),
			recalled: memory{refused: &refusal{etag: "1", until: now.Add(time.Minute)}}, reason: v1beta1.ReasonInstanceRefused, wait: time.Minute},
		"a refusal that is old": {seen: observed(claiming(newMachine("m"))),
			recalled: memory{refused: &refusal{etag: "1", until: now}}, want: order},
		"a refusal of another group": {seen: observed(claiming(newMachine("m"))),
			recalled: memory{refused: &refusal{etag: "2", until: now.Add(time.Minute)}}, want: order},
		"of a pool: listed":                    {seen: observed(newMember("m")), change: isListed(shard.InstancePending), want: hear},
		"of a pool: listed, shard away":        {seen: observed(newMember("m")), change: func(o *observation) { isListed(shard.InstancePending)(o); isAway(o) }, reason: v1beta1.ReasonShardUnreachable},
		"of a pool: listed as running":         {seen: observed(newMember("m")), recalled: verified, change: isListed(shard.InstanceRunning), want: hear},
		"of a pool: listed as running, away":   {seen: observed(newMember("m")), change: func(o *observation) { isListed(shard.InstanceRunning)(o); isAway(o) }, want: hear},
		"of a pool: listed, and gone":          {seen: observed(newMember("m")), change: func(o *observation) { isListed(shard.InstanceRunning)(o); o.notice = gone }},
		"of a pool: runs, no lists":            {seen: observed(runningMember("m")), recalled: verified},
		"of a pool: runs, no lists, a restart": {seen: observed(runningMember("m")), want: ask},
		"of a pool: new, no lists":             {seen: observed(newMember("m")), recalled: verified, want: ask},
		"of a pool: runs, missing":             {seen: observed(runningMember("m")), recalled: verified, change: isMissing, want: ask},
		"of a pool: runs, missing, just asked": {seen: observed(runningMember("m")), recalled: memory{asking: pace{next: now.Add(3 * time.Second)}}, change: isMissing, wait: 3 * time.Second},
		"of a pool: runs, missing, away":       {seen: observed(runningMember("m")), change: func(o *observation) { isMissing(o); isAway(o) }},
		"of a pool: new, missing, away":        {seen: observed(newMember("m")), change: func(o *observation) { isMissing(o); isAway(o) }, reason: v1beta1.ReasonShardUnreachable},
		"of a pool: its Machine is gone":       {seen: observed(runningMember("m")), recalled: verified, change: func(o *observation) { o.owner, o.orphan = nil, true }},
		"of a pool: shard unknown":             {seen: observed(newMember("m")), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"of a pool: to end, never reported":    {seen: observed(deleting(newMember("m"))), want: end},
		"of a pool: to end, away":              {seen: observed(deleting(runningMember("m"))), change: isAway, reason: v1beta1.ReasonShardUnreachable},
		"of a pool: to end, gone":              {seen: observed(deleting(newMember("m"))), change: func(o *observation) { o.notice = gone }, want: release},
		"of a pool: to end, without a shard":   {seen: observed(deleting(withoutShard(newMember("m")))), change: isUnknown, want: release},
		"of a pool: ended by its shard":        {seen: observed(endedByServer(runningMember("m"))), want: removeOwner},
		"of a pool: ended, no Machine":         {seen: observed(endedByServer(runningMember("m"))), change: func(o *observation) { o.owner = nil }, want: discard},
		"labelled like one, and was asked for": {seen: observed(labelled(claiming(newMachine("m")))), want: order},
		"a pause":                              {seen: bare(), change: func(o *observation) { o.paused = "somebody" }, reason: v1beta1.ReasonPaused},
		"a pause of a deletion":                {seen: observed(deleting(having(newMachine("m"), "i-1"))), change: func(o *observation) { o.paused = "somebody" }, reason: v1beta1.ReasonPaused},
		"its Machine is gone":                  {seen: bare(), change: func(o *observation) { o.owner, o.orphan = nil, true }, want: discard},
		"its Machine is gone, and it goes already": {seen: observed(deleting(having(newMachine("m"), "i-1"))),
			change: func(o *observation) { o.owner, o.orphan = nil, true }, want: end},

		"one that does not run yet":                 {seen: observed(having(newMachine("m"), "i-1")), recalled: verified, want: ask},
		"one that was asked for a moment ago":       {seen: observed(having(newMachine("m"), "i-1")), recalled: memory{asking: pace{next: now.Add(3 * time.Second)}}, wait: 3 * time.Second},
		"one that runs":                             {seen: observed(running(newMachine("m"), "i-1")), recalled: verified},
		"one that runs, after a restart":            {seen: observed(running(newMachine("m"), "i-1")), want: ask},
		"one that runs, in another session":         {seen: observed(running(newMachine("m"), "i-1")), recalled: verified, change: func(o *observation) { o.session = 2 }, want: ask},
		"one that runs, before the watch is open":   {seen: observed(running(newMachine("m"), "i-1")), change: func(o *observation) { o.session = 0 }},
		"one that runs, on a shard that is away":    {seen: observed(running(newMachine("m"), "i-1")), change: isAway},
		"one that does not run, on a shard away":    {seen: observed(having(newMachine("m"), "i-1")), change: isAway, reason: v1beta1.ReasonShardUnreachable},
		"one that is announced to be gone":          {seen: observed(running(newMachine("m"), "i-1")), change: func(o *observation) { o.notice = gone }},
		"one that nobody owns is followed":          {seen: observed(having(newMachine("m"), "i-1")), change: func(o *observation) { o.owner = nil }, want: ask},
		"ended by its shard":                        {seen: observed(endedByServer(running(newMachine("m"), "i-1"))), want: removeOwner},
		"ended by its shard, the Machine goes":      {seen: observed(endedByServer(running(newMachine("m"), "i-1"))), change: func(o *observation) { o.owner.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }},
		"ended by its shard, no Machine":            {seen: observed(endedByServer(running(newMachine("m"), "i-1"))), change: func(o *observation) { o.owner = nil }, want: discard},
		"ended by its shard, and that one is away":  {seen: observed(endedByServer(running(newMachine("m"), "i-1"))), change: isAway, want: removeOwner},
		"to end: nothing was ordered":               {seen: observed(deleting(holding(newMachine("m")))), want: release},
		"to end: nothing was ordered, nobody knows": {seen: observed(deleting(holding(newMachine("m")))), change: isUnknown, want: release},
		"to end: perhaps ordered":                   {seen: observed(deleting(claiming(newMachine("m")))), want: order},
		"to end: perhaps ordered, away":             {seen: observed(deleting(claiming(newMachine("m")))), change: isAway, reason: v1beta1.ReasonShardUnreachable},
		"to end: perhaps ordered, shard unknown":    {seen: observed(deleting(claiming(newMachine("m")))), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"to end: perhaps ordered, refused before":   {seen: observed(deleting(claiming(newMachine("m")))), recalled: memory{refused: &refusal{etag: "1", until: now.Add(time.Minute)}}, want: order},
		"to end":                                      {seen: observed(deleting(running(newMachine("m"), "i-1"))), want: end},
		"to end: told to a moment ago":                {seen: observed(deleting(running(newMachine("m"), "i-1"))), recalled: memory{ending: pace{next: now.Add(time.Second)}}, wait: time.Second},
		"to end: announced to be gone":                {seen: observed(deleting(running(newMachine("m"), "i-1"))), change: func(o *observation) { o.notice = gone }, want: release},
		"to end: announced to be gone, shard away":    {seen: observed(deleting(running(newMachine("m"), "i-1"))), change: func(o *observation) { o.notice = gone; isAway(o) }, want: release},
		"to end: announced to end soon":               {seen: observed(deleting(running(newMachine("m"), "i-1"))), change: func(o *observation) { o.notice = &shard.Notice{State: shard.Deleting} }, want: end},
		"to end: ended by its shard":                  {seen: observed(deleting(endedByServer(running(newMachine("m"), "i-1")))), want: release},
		"to end: ended by its shard, shard unknown":   {seen: observed(deleting(endedByServer(running(newMachine("m"), "i-1")))), change: isUnknown, want: release},
		"to end: away":                                {seen: observed(deleting(running(newMachine("m"), "i-1"))), change: isAway, reason: v1beta1.ReasonShardUnreachable},
		"to end: shard not connected yet":             {seen: observed(deleting(running(newMachine("m"), "i-1"))), change: func(o *observation) { o.reachable = false }, reason: v1beta1.ReasonNotSynced},
		"to end: shard unknown":                       {seen: observed(deleting(running(newMachine("m"), "i-1"))), change: isUnknown, reason: v1beta1.ReasonUnknownShard},
		"no bootstrap data":                           {seen: bare(), change: func(o *observation) { o.owner.Spec.Bootstrap.DataSecretName = nil }, reason: v1beta1.ReasonWaitingForMachine},
		"no Cluster":                                  {seen: bare(), change: func(o *observation) { o.cluster = nil }, reason: v1beta1.ReasonWaitingForMachine},
		"a Cluster without infrastructure":            {seen: bare(), change: func(o *observation) { o.cluster = &clusterv1.Cluster{} }, reason: v1beta1.ReasonWaitingForMachine},
		"a claim whose Cluster is not ready any more": {seen: observed(claiming(newMachine("m"))), change: func(o *observation) { o.cluster = nil }, reason: v1beta1.ReasonWaitingForMachine},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.change != nil {
				test.change(&test.seen)
			}
			got := plan(test.seen, test.recalled)
			reason := ""
			if got.trouble != nil {
				reason = got.trouble.reason
			}
			if got.step != test.want || reason != test.reason || got.wait != test.wait {
				t.Errorf("got step %d, %q, wait %s; want step %d, %q, wait %s", got.step, reason, got.wait, test.want, test.reason, test.wait)
			}
		})
	}
}

func isListed(state shard.InstanceState) func(*observation) {
	return func(seen *observation) {
		seen.listed = &shard.Instance{ID: seen.machine.Name, State: state, ProviderID: "provider-m"}
	}
}

func isMissing(seen *observation) { seen.missing = true }
func isAway(seen *observation)    { seen.reachable, seen.lost = false, errors.New("connection refused") }
func isUnknown(seen *observation) { seen.configured, seen.reachable = false, false }
