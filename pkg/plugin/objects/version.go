// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package objects

// APIVersion is the version of the structures that the commands print as JSON and YAML. A
// later release may add fields to it.
const APIVersion = "plugin.nstance.dev/v1alpha1"
