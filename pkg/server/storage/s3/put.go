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

// writeMetadata is the metadata key of the id of the write that wrote an object.
const writeMetadata = "nstance-write"

// condition is the condition of a write. One field is set.
type condition struct {
	ifMatch, ifNoneMatch *string
}

// put writes an object on a condition and returns its etag.
//
// The SDK sends a write again if the response is lost. If the first attempt
// succeeded, the second is rejected because of the first. Therefore each write has
// an id of its own, and after a rejection put checks whether the object has this
// id. The data is not enough: two servers that count from 1 both write 2.
func (s *Store) put(ctx context.Context, key string, data []byte, c condition) (string, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return "", err
	}
	if c.ifMatch != nil && *c.ifMatch == "" {
		return "", storage.ErrConflict // a service might treat it as no condition
	}
	writeID := rand.Text()
	output, err := s.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket:      &s.bucket,
		Key:         &key,
		Body:        bytes.NewReader(data),
		IfMatch:     c.ifMatch,
		IfNoneMatch: c.ifNoneMatch,
		Metadata:    map[string]string{writeMetadata: writeID},
	})
	switch code(err) {
	case codePreconditionFailed, codeConditionalConflict, codeNoSuchKey:
		return s.afterRejection(ctx, key, writeID)
	}
	if err != nil {
		return "", err
	}
	return aws.ToString(output.ETag), nil
}

// afterRejection returns the etag of the object if an earlier attempt of the
// rejected write wrote it, or else storage.ErrConflict.
func (s *Store) afterRejection(ctx context.Context, key, writeID string) (string, error) {
	object, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: &key})
	if code(err) == codeNotFound {
		return "", storage.ErrConflict
	}
	if err != nil {
		return "", fmt.Errorf("check whether an earlier attempt of the rejected write succeeded: %w", err)
	}
	if object.Metadata[writeMetadata] != writeID {
		return "", storage.ErrConflict
	}
	return aws.ToString(object.ETag), nil
}
