// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"strings"

	"nstance.dev/operator/pkg/base/identifier"
)

// CheckPrefix is the prefix of the cluster, the tenant and the group of the instances that
// nstance-admin provider check creates (docs/providers.md#check-a-provider). No server and no
// operator can have such a name, because no identifier contains the separator: a provider that
// lists the instances of one cluster and shard never lists those of a server and of a check
// together.
const CheckPrefix = "check" + identifier.Separator

// ValidateID returns nil if value is an identifier, or one after CheckPrefix, and otherwise an
// error with the rule that it violates. Providers validate the names of clusters, tenants and
// groups with it, which configurations and operators may not have with the prefix.
func ValidateID(value string) error {
	return identifier.Validate(strings.TrimPrefix(value, CheckPrefix))
}
