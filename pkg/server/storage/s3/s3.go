// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package s3 stores objects in a bucket of S3 or of a compatible service with conditional
// writes (https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html).
package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/storage"
)

// Error codes that depend on the object.
const (
	// codeNoSuchKey is for objects only. A missing bucket has another code, and must never be
	// mistaken for a missing object
	// (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html).
	codeNoSuchKey = "NoSuchKey"
	// codeNotFound is the SDK's code for a response without a body.
	codeNotFound           = "NotFound"
	codePreconditionFailed = "PreconditionFailed"
	// codeNotModified is the SDK's code for the response to a condition that an object still has a
	// version (https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html).
	codeNotModified = "NotModified"
	// codeConditionalConflict means that another operation on the object was in progress, maybe an
	// attempt of the same write, and that nothing was written
	// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html).
	codeConditionalConflict = "ConditionalRequestConflict"
)

// Store is a storage.Store in a bucket.
type Store struct {
	client *s3.Client
	bucket string
}

var _ storage.ChangeReader = (*Store)(nil)

// Open returns the storage in a bucket, which must exist. Endpoint, region and
// credentials come from the standard AWS_* environment variables and the other
// sources of the SDK. With a custom endpoint the bucket is in the path, because few
// other services have a host name for each bucket. Open sends no request.
func Open(ctx context.Context, bucket string) (*Store, error) {
	c, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	if c.Region == "" {
		return nil, fmt.Errorf("open bucket %s: the region is not known, set AWS_REGION", bucket)
	}
	client := s3.NewFromConfig(c, func(o *s3.Options) {
		o.UsePathStyle = o.BaseEndpoint != nil
		o.HTTPClient = deadline.HTTPClient(o.HTTPClient.Do)
		// Some services return no checksum. The SDK would log that at every read.
		o.DisableLogOutputChecksumValidationSkipped = true
	})
	return &Store{client: client, bucket: bucket}, nil
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, key string) (storage.Object, error) {
	object, err := s.getObject(ctx, key, nil)
	if err != nil {
		return storage.Object{}, fmt.Errorf("read %s from bucket %s: %w", key, s.bucket, err)
	}
	return object, nil
}

// GetChanged implements storage.ChangeReader.
func (s *Store) GetChanged(ctx context.Context, key, etag string) (storage.Object, error) {
	object, err := s.getObject(ctx, key, &etag)
	if err == nil && object.ETag == etag {
		err = storage.ErrUnchanged // the service ignores the condition
	}
	if err != nil {
		return storage.Object{}, fmt.Errorf("read %s from bucket %s: %w", key, s.bucket, err)
	}
	return object, nil
}

// getObject reads an object unless it has the version ifNoneMatch, which may be nil.
func (s *Store) getObject(ctx context.Context, key string, ifNoneMatch *string) (storage.Object, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return storage.Object{}, err
	}
	output, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key, IfNoneMatch: ifNoneMatch})
	switch code(err) {
	case codeNoSuchKey:
		return storage.Object{}, storage.ErrNotFound
	case codeNotModified:
		return storage.Object{}, storage.ErrUnchanged
	}
	if err != nil {
		return storage.Object{}, err
	}
	data, readErr := io.ReadAll(output.Body)
	if err := errors.Join(readErr, output.Body.Close()); err != nil {
		return storage.Object{}, err
	}
	return storage.Object{
		Data:         data,
		ETag:         aws.ToString(output.ETag),
		LastModified: aws.ToTime(output.LastModified),
	}, nil
}

// Create implements storage.Store.
func (s *Store) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := s.put(ctx, key, data, condition{ifNoneMatch: aws.String("*")})
	if err != nil {
		return "", fmt.Errorf("create %s in bucket %s: %w", key, s.bucket, err)
	}
	return etag, nil
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	newETag, err := s.put(ctx, key, data, condition{ifMatch: &etag})
	if err != nil {
		return "", fmt.Errorf("replace %s in bucket %s: %w", key, s.bucket, err)
	}
	return newETag, nil
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.deleteObject(ctx, key); err != nil {
		return fmt.Errorf("delete %s from bucket %s: %w", key, s.bucket, err)
	}
	return nil
}

func (s *Store) deleteObject(ctx context.Context, key string) error {
	if err := storage.CheckCall(ctx, key); err != nil {
		return err
	}
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: &key})
	if code(err) == codeNoSuchKey {
		return nil
	}
	return err
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]storage.Info, error) {
	infos, err := s.listObjects(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %q in bucket %s: %w", prefix, s.bucket, err)
	}
	return infos, nil
}

func (s *Store) listObjects(ctx context.Context, prefix string) ([]storage.Info, error) {
	if err := storage.CheckListCall(ctx, prefix); err != nil {
		return nil, err
	}
	var infos []storage.Info
	pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{Bucket: &s.bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, object := range page.Contents {
			key := aws.ToString(object.Key)
			if storage.CheckKey(key) != nil {
				continue // not written by a server, for example a folder of the console
			}
			infos = append(infos, storage.Info{Key: key, ETag: aws.ToString(object.ETag)})
		}
	}
	// Directory buckets do not list in the order of keys
	// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html).
	slices.SortFunc(infos, func(a, b storage.Info) int { return strings.Compare(a.Key, b.Key) })
	return infos, nil
}

// code returns the service's code of an error, or "" without a response.
func code(err error) string {
	var apiErr smithy.APIError
	if errors.As(err, &apiErr) {
		return apiErr.ErrorCode()
	}
	return ""
}

// writeMetadata is the metadata key of the id of the write that wrote an object.
const writeMetadata = "nstance-write"

// condition is the condition of a write. One field is set.
type condition struct {
	ifMatch, ifNoneMatch *string
}

// put writes an object on a condition and returns its etag.
//
// The SDK sends a write again if the response is lost. If the first attempt succeeded, the
// second is rejected because of the first. Therefore each write has an id of its own, and
// after a rejection put checks whether the object has this id. The data is not enough: two
// servers that count from 1 both write 2.
func (s *Store) put(ctx context.Context, key string, data []byte, c condition) (string, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return "", err
	}
	if c.ifMatch != nil && *c.ifMatch == "" {
		return "", storage.ErrConflict // a service might treat it as no condition
	}
	writeID := rand.Text()
	for attempt, delay := 1, conflictDelay; ; attempt, delay = attempt+1, 2*delay {
		output, err := s.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket:      &s.bucket,
			Key:         &key,
			Body:        bytes.NewReader(data),
			IfMatch:     c.ifMatch,
			IfNoneMatch: c.ifNoneMatch,
			Metadata:    map[string]string{writeMetadata: writeID},
		})
		switch code(err) {
		case codePreconditionFailed, codeNoSuchKey:
			return s.afterRejection(ctx, key, writeID)
		case codeConditionalConflict:
			if attempt < maxConflicts && wait(ctx, delay) == nil {
				continue
			}
		}
		if err != nil {
			return "", err
		}
		return aws.ToString(output.ETag), nil
	}
}

const (
	// maxConflicts is how many times a write is sent that meets another operation on its object.
	maxConflicts = 5
	// conflictDelay is the time between the first two attempts, which doubles.
	conflictDelay = 50 * time.Millisecond
)

// wait waits for a time. It returns an error if ctx ends before.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return deadline.Check(ctx)
	}
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
