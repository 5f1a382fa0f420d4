// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"

	"nstance.dev/operator/pkg/server/instance"
)

// Finder is implemented by providers that can look for one instance without a list.
type Finder interface {
	// Find reads one instance as consistently as the provider can. It returns false only if
	// the instance certainly does not exist. It changes nothing that Get returns.
	Find(ctx context.Context, id string) (instance.VM, bool, error)
}
