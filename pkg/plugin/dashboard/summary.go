// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"fmt"
	"strings"

	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/status"
)

// maxNamed is the number of pools that the summary names.
const maxNamed = 3

// summary returns sentences about all pools. Screen readers read them aloud when they
// change, so they have no ages.
func summary(built *status.Status) string {
	return poolsSentence(built.Pools) + " " + nodesSentence(built) + " " + drainsSentence(built)
}

// summaryTone returns the tone of what needs attention most.
func summaryTone(built *status.Status) tone {
	result := toneOK
	if len(built.Unknown) > 0 {
		result = toneUnknown
	}
	for i := range built.Pools {
		result = worse(result, conditionsTone(built.Pools[i].Problems))
	}
	for i := range built.Drains {
		result = worse(result, drainTone(built.Drains[i].State))
	}
	return result
}

func poolsSentence(pools []status.Pool) string {
	var others []string
	for i := range pools {
		if text := pools[i].Text(); text != "Ready" {
			others = append(others, pools[i].Name+" ("+text+")")
		}
	}
	switch {
	case len(pools) == 0:
		return "There are no pools."
	case len(others) == 0 && len(pools) == 1:
		return fmt.Sprintf("Pool %s is Ready.", pools[0].Name)
	case len(pools) == 1:
		return fmt.Sprintf("Pool %s is not Ready: %s.", pools[0].Name, pools[0].Text())
	case len(others) == 0:
		return fmt.Sprintf("All %d pools are Ready.", len(pools))
	}
	text := fmt.Sprintf("%d of %d pools %s not Ready: ", len(others), len(pools), verb(len(others), "is", "are"))
	if len(others) > maxNamed {
		return fmt.Sprintf("%s%s, and %d more.", text, strings.Join(others[:maxNamed], ", "), len(others)-maxNamed)
	}
	return text + strings.Join(others, ", ") + "."
}

func nodesSentence(built *status.Status) string {
	if built.DrainsUnknown != "" {
		return "Nodes are unknown: " + built.DrainsUnknown + "."
	}
	var ready, instances int
	for i := range built.Pools {
		for j := range built.Pools[i].Shards {
			shard := &built.Pools[i].Shards[j]
			instances += len(shard.Instances)
			if shard.ReadyNodes != nil {
				ready += int(*shard.ReadyNodes)
			}
		}
	}
	return fmt.Sprintf("%d of %d %s a Ready Node.", ready, instances, verb(instances, "instance has", "instances have"))
}

func drainsSentence(built *status.Status) string {
	count, blocked := len(built.Drains), 0
	for i := range built.Drains {
		if built.Drains[i].State == drains.Blocked {
			blocked++
		}
	}
	switch {
	case built.DrainsUnknown != "":
		return "Drains are unknown: " + built.DrainsUnknown + "."
	case count == 0:
		return "No drains are in progress."
	case blocked == 0:
		return fmt.Sprintf("%d %s in progress.", count, verb(count, "drain is", "drains are"))
	}
	return fmt.Sprintf("%d of %d %s blocked.", blocked, count, verb(count, "drain is", "drains are"))
}

// verb returns the form for a number.
func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
