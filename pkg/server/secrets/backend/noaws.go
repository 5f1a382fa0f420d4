// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build noaws

package backend

import (
	"context"
	"errors"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
)

var errNoAWS = errors.New("this program is built without AWS")

func openAWS(context.Context, config.Secrets) (secrets.Store, error) { return nil, errNoAWS }

func readAWS(context.Context, config.KeySource) ([]byte, error) { return nil, errNoAWS }
