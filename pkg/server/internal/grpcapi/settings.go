// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"nstance.dev/operator/pkg/server/groups"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// settingsFrom returns the settings of a request.
func settingsFrom(config *nstancev1.GroupConfig) groups.Settings {
	return groups.Settings{
		Template:     config.GetTemplate(),
		InstanceType: config.GetInstanceType(),
		SubnetPools:  config.GetSubnets(),
		Vars:         config.GetVars(),
	}
}

// setSettings reports the settings in effect, and those that were declared last. A
// group without a declaration reports an empty one, by which the client knows that
// the server supports declarations (docs/protocol.md#extensions).
func setSettings(status *nstancev1.GroupStatus, group *groups.Group) {
	status.Template = group.Template
	status.InstanceType = group.InstanceType
	status.Subnets = group.SubnetPools
	status.Vars = group.Vars

	status.Declared = &nstancev1.GroupSettings{}
	if declared := group.Declared; declared != nil {
		status.Declared.Template = declared.Template
		status.Declared.InstanceType = declared.InstanceType
		status.Declared.Subnets = declared.SubnetPools
		status.Declared.Vars = declared.Vars
	}
}
