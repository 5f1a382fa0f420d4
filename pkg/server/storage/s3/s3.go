// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package s3 keeps the objects of a storage in a bucket of S3 or of a service
// like it that knows conditional writes.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"nstance.dev/operator/pkg/server/storage"
)

// Codes of errors that tell something of the object.
const (
	// codeNoSuchKey is not the code of a bucket that does not exist, which must
	// never look like an object that does not.
	codeNoSuchKey = "NoSuchKey"
	// codeNotFound is what the SDK makes of an answer without a body.
	codeNotFound           = "NotFound"
	codePreconditionFailed = "PreconditionFailed"
	// codeConditionalConflict: another write came between the look at the
	// condition and the write.
	codeConditionalConflict = "ConditionalRequestConflict"
)

// Store is a storage.Store in a bucket.
type Store struct {
	client *s3.Client
	bucket string
}

var _ storage.Store = (*Store)(nil)

// Open returns the storage in a bucket, which must exist. Endpoint, region and
// credentials come from the standard AWS_* environment and from what else the
// SDK reads. With an endpoint of one's own the bucket is in the path, for few
// other services answer to a host name for each bucket. Open sends nothing.
func Open(ctx context.Context, bucket string) (*Store, error) {
	c, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening bucket %s: %w", bucket, err)
	}
	if c.Region == "" {
		return nil, fmt.Errorf("opening bucket %s: no region is known, set AWS_REGION", bucket)
	}
	client := s3.NewFromConfig(c, func(o *s3.Options) {
		o.UsePathStyle = o.BaseEndpoint != nil
		o.HTTPClient = punctualClient{o.HTTPClient}
		// Not every service returns a checksum, which is no news at each read.
		o.DisableLogOutputChecksumValidationSkipped = true
	})
	return &Store{client: client, bucket: bucket}, nil
}

// Get implements storage.Store.
func (s *Store) Get(ctx context.Context, key string) (storage.Object, error) {
	object, err := s.get(ctx, key)
	if err != nil {
		return storage.Object{}, fmt.Errorf("reading %s from bucket %s: %w", key, s.bucket, err)
	}
	return object, nil
}

func (s *Store) get(ctx context.Context, key string) (storage.Object, error) {
	if err := check(ctx, key); err != nil {
		return storage.Object{}, err
	}
	output, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.bucket, Key: &key})
	if code(err) == codeNoSuchKey {
		return storage.Object{}, storage.ErrNotFound
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
		return "", fmt.Errorf("creating %s in bucket %s: %w", key, s.bucket, err)
	}
	return etag, nil
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	newETag, err := s.put(ctx, key, data, condition{ifMatch: &etag})
	if err != nil {
		return "", fmt.Errorf("replacing %s in bucket %s: %w", key, s.bucket, err)
	}
	return newETag, nil
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.delete(ctx, key); err != nil {
		return fmt.Errorf("deleting %s from bucket %s: %w", key, s.bucket, err)
	}
	return nil
}

func (s *Store) delete(ctx context.Context, key string) error {
	if err := check(ctx, key); err != nil {
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
	infos, err := s.list(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("listing %q in bucket %s: %w", prefix, s.bucket, err)
	}
	return infos, nil
}

func (s *Store) list(ctx context.Context, prefix string) ([]storage.Info, error) {
	if err := storage.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	if err := storage.Ended(ctx); err != nil {
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
				continue // nothing that a server has written, as the folders of a console
			}
			infos = append(infos, storage.Info{Key: key, ETag: aws.ToString(object.ETag)})
		}
	}
	// Not every kind of bucket lists in the order of keys.
	slices.SortFunc(infos, func(a, b storage.Info) int { return strings.Compare(a.Key, b.Key) })
	return infos, nil
}

// check refuses a bad key and does nothing for a ctx that has ended.
func check(ctx context.Context, key string) error {
	if err := storage.CheckKey(key); err != nil {
		return err
	}
	return storage.Ended(ctx)
}

// code returns what the service calls an error, "" if it did not answer.
func code(err error) string {
	var apiErr smithy.APIError
	if errors.As(err, &apiErr) {
		return apiErr.ErrorCode()
	}
	return ""
}
