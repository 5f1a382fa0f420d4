// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build !noaws

package backend

import (
	"context"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/s3"
)

func openS3(ctx context.Context, bucket string) (storage.Store, error) { return s3.Open(ctx, bucket) }
