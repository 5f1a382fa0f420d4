// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	nstancev1 "nstance.dev/operator/proto/nstance/v1"

	"nstance.dev/operator/pkg/shard"
)

// Notice is the domain form of event, as if it were the first of its instance. A
// nil event is the zero Notice. The state is the server's and may be unknown.
func Notice(event *nstancev1.InstanceEvent) shard.Notice {
	return shard.Notice{
		InstanceID: event.GetInstanceId(),
		ProviderID: event.GetProviderInstanceId(),
		Group:      event.GetGroup(),
		State:      shard.NoticeState(event.GetStatus()),
		Reason:     event.GetReason(),
		Since:      moment(event.GetUnhealthyAt()),
		DeleteAt:   moment(event.GetDeleteAt()),
	}
}
