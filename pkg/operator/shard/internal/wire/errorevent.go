// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	nstancev1 "nstance.dev/operator/proto/nstance/v1"

	"nstance.dev/operator/pkg/operator/shard"
)

// ErrorEvent converts event. A nil event becomes the zero ErrorEvent.
func ErrorEvent(event *nstancev1.ErrorEvent) shard.ErrorEvent {
	return shard.ErrorEvent{
		Group:      event.GetGroup(),
		InstanceID: event.GetInstanceId(),
		Message:    event.GetError(),
		Time:       timeOrZero(event.GetTimestamp()),
	}
}
