// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"crypto/ed25519"
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
	// keyRetry is the delay before missing keys are requested again.
	keyRetry = 30 * time.Second
	// maxReason is the maximum length, in bytes, of an agent's error that is reported.
	maxReason = 200
)

// agent is the state of one agent.
type agent struct {
	files *Session[*Patch]
	keys  *Session[[]string]
	// public has the keys that the agent has sent, by name.
	public map[string]ed25519.PublicKey
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
}

// report stores what a report says about files.
func (a *agent) report(r *nstancev1.HealthReportRequest) {
	a.reported, a.configHash, a.status = true, r.GetConfigHash(), r.GetFiles()
}

// outdated reports whether the files of an agent differ from the files of its group: its hash
// differs, or a file is missing, cannot be used, or is a certificate to renew.
func (a *agent) outdated(c *config.Config, group *groups.Group, now time.Time) bool {
	if a.configHash != group.RuntimeConfigHash {
		return true
	}
	for name, file := range group.Files {
		status, found := a.status[name]
		if !found || status.GetError() != "" {
			return true
		}
		source, err := file.Parse()
		if err != nil || source.Template == "" {
			continue
		}
		template, known := c.Certificates[source.Template]
		if modified := status.GetLastModified(); known && modified.IsValid() && due(template, modified.AsTime(), now) {
			return true
		}
	}
	return false
}

// retryAt returns when a hash may be sent, which is at once unless it was sent before.
func (a *agent) retryAt(hash string) time.Time {
	if a.sent != hash || a.count == 0 {
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
		// The cut must not leave a part of a character: events with the reason are UTF-8.
		reasons[name] = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	}
	return reasons
}
