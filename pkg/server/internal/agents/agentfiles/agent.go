// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"crypto"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// minRetry and maxRetry bound the delay before the same files are sent again to an
	// agent that does not report them.
	minRetry = 10 * time.Second
	maxRetry = 30 * time.Minute
	// keyRetry is the delay before missing keys are requested again, and before the files that
	// need no missing key are sent.
	keyRetry = 30 * time.Second
	// keyReport is the delay before missing keys are reported.
	keyReport = 2 * time.Minute
)

// agent is the state of one agent.
type agent struct {
	files *Session[*Patch]
	keys  *Session[[]string]
	// public has the keys that the agent has sent, by name.
	public map[string]crypto.PublicKey
	// configHash and status are from the latest report. reported is false before the first
	// report.
	reported   bool
	configHash string
	status     map[string]*nstancev1.FileStatus
	// sent is the hash of the patch that was sent last, at sentAt, for the count-th time
	// in a row without a report that shows its effect.
	sent   string
	sentAt time.Time
	count  int
	// refused are the errors of the latest report that were reported, nil before the first.
	refused map[string]string
	// keysAt is when keys were requested last.
	keysAt time.Time
	// problems are the reasons why the agent has not sent keys that can be used, by name.
	problems map[string]string
	// missingSince is when keys began to be missing, zero if none is, and missingReported has the
	// missing keys that were reported.
	missingSince    time.Time
	missingReported string
}

// report stores what a report says about files.
func (a *agent) report(r *nstancev1.HealthReportRequest) {
	a.reported, a.configHash, a.status = true, r.GetConfigHash(), r.GetFiles()
}

// outdated reports whether the files of an agent differ from the files of its group: its hash
// differs, or a file is missing, cannot be used, or is a certificate to renew.
func (a *agent) outdated(c *config.Config, group *groups.Group, known *contentCache, now time.Time) bool {
	if !known.upToDate(a.configHash, group) {
		return true
	}
	for name, file := range group.Files {
		status, found := a.status[name]
		if !found || status.GetError() != "" {
			return true
		}
		parsed, err := file.Parse()
		if err != nil || parsed.Template == "" {
			continue
		}
		template, found := c.Certificates[parsed.Template]
		if modified := status.GetLastModified(); found && modified.IsValid() && due(template, modified.AsTime(), now) {
			return true
		}
	}
	return false
}

// retryAt returns when the files of a configuration may be sent, which is at once unless they were
// sent before. Other contents of its secrets and objects change nothing: a store may return old
// and new contents in turn.
func (a *agent) retryAt(hash string) time.Time {
	if withoutContents(a.sent) != hash || a.count == 0 {
		return time.Time{}
	}
	return a.sentAt.Add(min(maxRetry, minRetry<<min(a.count-1, 10)))
}

// missing returns the names of the keys that the agent has not sent.
func (a *agent) missing(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, found := a.public[name]
		return found
	})
}

// errors returns the files that the agent cannot use, with the reason unless the file is
// confidential.
func (a *agent) errors(group *groups.Group) map[string]string {
	reasons := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(group.Files)) {
		reason := a.status[name].GetError()
		if reason == "" {
			continue
		}
		if kind := group.Files[name].Kind; kind == config.FileSecret || kind == config.FileStorage {
			reason = "the agent cannot use it"
		}
		reasons[name] = cut(reason)
	}
	return reasons
}

// partialHash marks the hash of a configuration of which files could not be made for lack of keys.
// The hash of the group differs, so the agent is sent all files later, also by another server.
const partialHash = "+without-keys"

// available returns a group with the files of a group that need no missing key, and the reasons why
// keys are missing, as a text with the files that need them.
func (a *agent) available(group *groups.Group, missing []string) (available *groups.Group, reasons string) {
	copied := *group
	copied.Files = map[string]config.File{}
	if withoutContents(a.configHash) != group.RuntimeConfigHash {
		copied.RuntimeConfigHash += partialHash
	}
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(group.Files)) {
		file := group.Files[name]
		parsed, err := file.Parse()
		if err != nil || parsed.Key == "" || !slices.Contains(missing, parsed.Key) {
			copied.Files[name] = file
			continue
		}
		reason := "the agent has not sent it"
		if problem := a.problems[parsed.Key]; problem != "" {
			reason = problem
		}
		texts = append(texts, fmt.Sprintf("file %s needs the key %q: %s", name, parsed.Key, reason))
	}
	return &copied, strings.Join(texts, "; ")
}
