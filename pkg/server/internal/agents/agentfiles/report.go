// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agentfiles

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// maxText is the maximum length, in bytes, of a text of an agent that is kept or reported.
const maxText = 200

// cut shortens a text that an agent gives. It leaves no part of a character, because events with
// the text are UTF-8.
func cut(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "") }

// Trim returns what the server uses of a report of an instance. The latest report of each agent is
// kept, and a report may have 256 KiB.
func (p *Pusher) Trim(i *instance.Instance, r *nstancev1.HealthReportRequest) *nstancev1.HealthReportRequest {
	group, found := p.groupOf(i)
	if !found {
		return trim(nil, r)
	}
	return trim(group.Files, r)
}

// trim is Trim for the files of a group.
func trim(files map[string]config.File, r *nstancev1.HealthReportRequest) *nstancev1.HealthReportRequest {
	kept := &nstancev1.HealthReportRequest{
		InstanceId: r.GetInstanceId(),
		ConfigHash: cut(r.GetConfigHash()),
		NotReady:   cut(r.GetNotReady()),
		Files:      map[string]*nstancev1.FileStatus{},
	}
	if notice := r.GetTerminationNotice(); notice != nil {
		kept.TerminationNotice = &nstancev1.TerminationNotice{Action: cut(notice.GetAction()), Deadline: trimTime(notice.GetDeadline())}
	}
	for name := range files {
		status, found := r.GetFiles()[name]
		if !found {
			continue
		}
		kept.Files[name] = &nstancev1.FileStatus{}
		switch reason := status.GetError(); {
		case reason != "":
			kept.Files[name].Status = &nstancev1.FileStatus_Error{Error: cut(reason)}
		case status.GetLastModified() != nil:
			kept.Files[name].Status = &nstancev1.FileStatus_LastModified{LastModified: trimTime(status.GetLastModified())}
		}
	}
	return kept
}

// trimTime returns a time without fields that this version does not know.
func trimTime(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	if t == nil {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: t.GetSeconds(), Nanos: t.GetNanos()}
}
