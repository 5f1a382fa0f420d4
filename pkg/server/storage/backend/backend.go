// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package backend opens the storage that the flags of a command name.
package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
	"nstance.dev/operator/pkg/server/storage/gcs"
)

// Values of --storage.
const (
	// File stores the objects in a folder.
	File = "file"
	// S3 stores the objects in a bucket of S3 or of a compatible service.
	S3 = "s3"
	// GCS stores the objects in a bucket of Google Cloud Storage.
	GCS = "gcs"
)

// Known are all values of --storage.
var Known = []string{File, GCS, S3}

// bucketPollInterval is PollInterval of services that charge for each call.
const bucketPollInterval = 15 * time.Second

// PollInterval returns how often at most a server reads an object to see whether it has changed, for a
// value of --storage; zero if reads cost nothing.
func PollInterval(provider string) time.Duration {
	if provider == File {
		return 0
	}
	return bucketPollInterval
}

// Open returns the storage for the flags --storage, --bucket and --prefix. Errors
// name the invalid flag. The bucket of File is the path of a folder. The prefix may
// be empty, and may end in a slash or not.
func Open(ctx context.Context, provider, bucket, prefix string) (storage.Store, error) {
	if !slices.Contains(Known, provider) {
		return nil, fmt.Errorf("--storage: %q is unknown, must be %q, %q or %q", provider, File, GCS, S3)
	}
	if bucket == "" {
		return nil, errors.New("--bucket: must be set")
	}
	if err := storage.CheckPrefix(prefix); err != nil {
		return nil, fmt.Errorf("--prefix: %w", err)
	}
	store, err := open(ctx, provider, bucket)
	if err != nil {
		return nil, fmt.Errorf("--bucket: %w", err)
	}
	return storage.WithPrefix(store, prefix), nil
}

// MinWriteInterval returns the time that the storage of the flag --storage needs between two writes of
// one object.
func MinWriteInterval(provider string) time.Duration {
	if provider == GCS {
		return gcs.MinWriteInterval
	}
	return 0
}

func open(ctx context.Context, provider, bucket string) (storage.Store, error) {
	switch provider {
	case S3:
		return openS3(ctx, bucket)
	case GCS:
		return gcs.Open(bucket)
	}
	return file.Open(bucket)
}
