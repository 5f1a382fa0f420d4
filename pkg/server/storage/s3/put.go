// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"nstance.dev/operator/pkg/server/storage"
)

// writeMetadata is the metadata of an object that tells which write it is of.
const writeMetadata = "nstance-write"

// condition is what an object must be for a write to be done. One field is set.
type condition struct {
	ifMatch, ifNoneMatch *string
}

// put writes an object on a condition and returns its etag.
//
// The SDK sends a write again when the answer to it is lost. If the first one
// was done, the second one is refused because of the first. Therefore each write
// has a name of its own, and one that is refused looks whether the object has
// it. The data does not tell: two servers that count from 1 both write 2.
func (s *Store) put(ctx context.Context, key string, data []byte, c condition) (string, error) {
	if err := check(ctx, key); err != nil {
		return "", err
	}
	if c.ifMatch != nil && *c.ifMatch == "" {
		return "", storage.ErrConflict // a service could take it for no condition at all
	}
	write := rand.Text()
	output, err := s.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket:      &s.bucket,
		Key:         &key,
		Body:        bytes.NewReader(data),
		IfMatch:     c.ifMatch,
		IfNoneMatch: c.ifNoneMatch,
		Metadata:    map[string]string{writeMetadata: write},
	})
	switch code(err) {
	case codePreconditionFailed, codeConditionalConflict, codeNoSuchKey:
		return s.refused(ctx, key, write)
	}
	if err != nil {
		return "", err
	}
	return aws.ToString(output.ETag), nil
}

// refused returns the etag of an object if it is that of the write which the
// service has refused, or else storage.ErrConflict.
func (s *Store) refused(ctx context.Context, key, write string) (string, error) {
	object, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: &key})
	if code(err) == codeNotFound {
		return "", storage.ErrConflict
	}
	if err != nil {
		return "", fmt.Errorf("the write was refused, and whether an earlier attempt at it was done is unknown: %w", err)
	}
	if object.Metadata[writeMetadata] != write {
		return "", storage.ErrConflict
	}
	return aws.ToString(object.ETag), nil
}
