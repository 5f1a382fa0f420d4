// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	nstancev1 "nstance.dev/operator/proto/nstance/v1"

	"nstance.dev/operator/pkg/operator/shard"
)

// Notice converts event, without Announced and Deadline. A nil event becomes the zero
// DeletionNotice. The state may be one that the operator does not know.
func Notice(event *nstancev1.InstanceEvent) shard.DeletionNotice {
	return shard.DeletionNotice{
		InstanceID: event.GetInstanceId(),
		ProviderID: event.GetProviderInstanceId(),
		Group:      event.GetGroup(),
		State:      shard.NoticeState(event.GetStatus()),
		Reason:     event.GetReason(),
		Since:      timeOrZero(event.GetUnhealthyAt()),
		DeleteAt:   timeOrZero(event.GetDeleteAt()),
	}
}
