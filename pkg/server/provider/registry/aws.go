// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build !noaws

package registry

import "nstance.dev/operator/pkg/server/provider/aws"

func init() { Providers[aws.Name] = aws.ReadOptions }
