// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package awssecrets stores secrets in AWS Secrets Manager and in AWS Parameter Store, and
// decrypts keys with AWS KMS (docs/server-reference.md#keys).
package awssecrets

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go"
)

// LoadConfig returns the configuration of clients. Endpoint, region and credentials come from
// the standard AWS_* environment variables and the other sources of the SDK
// (https://docs.aws.amazon.com/sdkref/latest/guide/creds-config-files.html). No credentials
// are looked up before the first request.
func LoadConfig(ctx context.Context) (aws.Config, error) { return LoadConfigOf(ctx, "") }

// LoadConfigOf is LoadConfig for a region, unless the region is empty.
func LoadConfigOf(ctx context.Context, region string) (aws.Config, error) {
	c, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return aws.Config{}, err
	}
	if region != "" {
		c.Region = region
	}
	if c.Region == "" {
		return aws.Config{}, errors.New("the region is not known, set AWS_REGION")
	}
	return c, nil
}

// code returns the service's code of an error, or "" without a response.
func code(err error) string {
	if apiErr, ok := errors.AsType[smithy.APIError](err); ok {
		return apiErr.ErrorCode()
	}
	return ""
}

// withoutValue returns an error of a call that sends a secret. The message of a service may
// quote the request, so only its code is kept, and the message if access is denied.
func withoutValue(err error) error {
	name := code(err)
	if name == "" || strings.HasPrefix(name, "AccessDenied") {
		return err
	}
	return fmt.Errorf("the service has responded with the error %s", name)
}
