// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build noaws

package backend

import (
	"context"
	"errors"

	"nstance.dev/operator/pkg/server/storage"
)

func openS3(context.Context, string) (storage.Store, error) {
	return nil, errors.New("this program is built without AWS")
}
