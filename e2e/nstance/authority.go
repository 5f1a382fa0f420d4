// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstance

import "nstance.dev/operator/pkg/server/pki"

// Authority has issued every certificate of the installation. With it a shard
// server that runs elsewhere can join.
func (n *Nstance) Authority() *pki.Authority { return n.authority }
