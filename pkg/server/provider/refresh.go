// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

// Refresher is implemented by providers that can look at single instances.
type Refresher interface {
	// Refresh requests that the provider looks at an instance soon, because its agent
	// does not report. It does not block. What the provider finds is a change like any
	// other.
	Refresh(id string)
}
