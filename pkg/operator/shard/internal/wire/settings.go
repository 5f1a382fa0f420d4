// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package wire

import (
	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// settingsMessage is a message with the fields of GroupSettings.
type settingsMessage interface {
	GetTemplate() string
	GetInstanceType() string
	GetSubnets() []string
	GetVars() map[string]string
}

func settings(message settingsMessage) shard.GroupSettings {
	return shard.GroupSettings{
		Template:     message.GetTemplate(),
		InstanceType: message.GetInstanceType(),
		Subnets:      message.GetSubnets(),
		Vars:         message.GetVars(),
	}
}

func declared(message *nstancev1.GroupSettings) *shard.GroupSettings {
	if message == nil {
		return nil
	}
	s := settings(message)
	return &s
}

// groupConfig returns the configuration of an UpsertGroup request.
func groupConfig(config shard.GroupConfig) *nstancev1.GroupConfig {
	return &nstancev1.GroupConfig{
		Size:         config.Size,
		Template:     config.Template,
		InstanceType: config.InstanceType,
		Subnets:      config.Subnets,
		Vars:         config.Vars,
	}
}
