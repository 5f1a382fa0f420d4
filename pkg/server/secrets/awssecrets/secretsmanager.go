// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package awssecrets

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	secretNotFound = "ResourceNotFoundException"
	secretExists   = "ResourceExistsException"
	// secretDeleting is the code for a name whose secret is being deleted, or scheduled for deletion.
	// AWS advises to try again after a deletion without recovery
	// (https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_DeleteSecret.html).
	secretDeleting   = "InvalidRequestException"
	deletingAttempts = 5
	deletingDelay    = 250 * time.Millisecond
	// maxSecretValue is the limit of the service, in bytes, see
	// https://docs.aws.amazon.com/secretsmanager/latest/userguide/reference_limits.html.
	maxSecretValue = 65536
	// maxSecretName is less than the limit of the service, in bytes.
	maxSecretName = 500
)

// secretNames matches the names that the service accepts.
var secretNames = regexp.MustCompile(`^[A-Za-z0-9/_+=.@-]+$`)

// SecretsManager is a secrets.Store in AWS Secrets Manager. It has only the methods of the
// client that it calls, and not the client: the linker would keep all methods that an
// interface can reach.
type SecretsManager struct {
	prefix string
	// delay is the delay after the first attempt to use the name of a deleted secret.
	delay  time.Duration
	get    func(context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error)
	create func(context.Context, *secretsmanager.CreateSecretInput, ...func(*secretsmanager.Options)) (*secretsmanager.CreateSecretOutput, error)
	put    func(context.Context, *secretsmanager.PutSecretValueInput, ...func(*secretsmanager.Options)) (*secretsmanager.PutSecretValueOutput, error)
	remove func(context.Context, *secretsmanager.DeleteSecretInput, ...func(*secretsmanager.Options)) (*secretsmanager.DeleteSecretOutput, error)
	list   func(context.Context, *secretsmanager.ListSecretsInput, ...func(*secretsmanager.Options)) (*secretsmanager.ListSecretsOutput, error)
}

var _ secrets.Store = (*SecretsManager)(nil)

// NewSecretsManager returns the secrets whose names begin with prefix. It sends no request.
func NewSecretsManager(c aws.Config, prefix string) *SecretsManager {
	client := secretsmanager.NewFromConfig(c, func(o *secretsmanager.Options) { o.HTTPClient = deadline.HTTPClient(o.HTTPClient.Do) })
	return &SecretsManager{
		prefix: prefix,
		delay:  deletingDelay,
		get:    client.GetSecretValue,
		create: client.CreateSecret,
		put:    client.PutSecretValue,
		remove: client.DeleteSecret,
		list:   client.ListSecrets,
	}
}

// Get implements secrets.Store.
func (s *SecretsManager) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := s.getValue(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read secret %s%s of AWS Secrets Manager: %w", s.prefix, name, err)
	}
	return data, nil
}

// getValue does not require a valid name: a source of a key may be an ARN.
func (s *SecretsManager) getValue(ctx context.Context, name string) ([]byte, error) {
	output, err := s.get(ctx, &secretsmanager.GetSecretValueInput{SecretId: aws.String(s.prefix + name)})
	switch {
	case code(err) == secretNotFound:
		return nil, storage.ErrNotFound
	case err != nil:
		return nil, err
	case output.SecretString != nil:
		return []byte(*output.SecretString), nil
	}
	return output.SecretBinary, nil
}

// Create implements secrets.Store. If the response of a request was lost, the SDK repeats it
// with the same ClientRequestToken, so that the service reports no conflict
// (https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_CreateSecret.html).
func (s *SecretsManager) Create(ctx context.Context, name string, data []byte) error {
	if err := s.createSecret(ctx, name, data); err != nil {
		return fmt.Errorf("store secret %s%s of AWS Secrets Manager: %w", s.prefix, name, err)
	}
	return nil
}

func (s *SecretsManager) createSecret(ctx context.Context, name string, data []byte) error {
	if err := s.check(name, data); err != nil {
		return err
	}
	for attempt, delay := 1, s.delay; ; attempt, delay = attempt+1, 2*delay {
		_, err := s.create(ctx, &secretsmanager.CreateSecretInput{Name: aws.String(s.prefix + name), SecretBinary: data})
		switch {
		case code(err) == secretExists:
			return storage.ErrConflict
		case code(err) != secretDeleting || attempt == deletingAttempts:
			return withoutValue(err)
		}
		select {
		case <-ctx.Done():
			return withoutValue(err)
		case <-time.After(delay):
		}
	}
}

// Set implements secrets.Store.
func (s *SecretsManager) Set(ctx context.Context, name string, data []byte) error {
	err := s.check(name, data)
	if err == nil {
		_, err = s.put(ctx, &secretsmanager.PutSecretValueInput{SecretId: aws.String(s.prefix + name), SecretBinary: data})
		if code(err) == secretNotFound {
			return s.Create(ctx, name, data)
		}
		err = withoutValue(err)
	}
	if err != nil {
		return fmt.Errorf("store secret %s%s of AWS Secrets Manager: %w", s.prefix, name, err)
	}
	return nil
}

// check returns the reason why the service cannot store a secret.
func (s *SecretsManager) check(name string, data []byte) error {
	switch {
	case !secretNames.MatchString(name) || len(s.prefix)+len(name) > maxSecretName:
		return fmt.Errorf("the name must have at most %d letters, digits and /_+=.@-, with the prefix", maxSecretName)
	case len(data) == 0 || len(data) > maxSecretValue:
		return fmt.Errorf("the value has %d bytes, must have 1 to %d", len(data), maxSecretValue)
	}
	return nil
}

// Delete implements secrets.Store. The secret cannot be recovered: its name can be used again soon.
func (s *SecretsManager) Delete(ctx context.Context, name string) error {
	// With ForceDeleteWithoutRecovery the service accepts the deletion of a secret that does
	// not exist
	// (https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_DeleteSecret.html).
	_, err := s.getValue(ctx, name)
	if err == nil {
		_, err = s.remove(ctx, &secretsmanager.DeleteSecretInput{SecretId: aws.String(s.prefix + name), ForceDeleteWithoutRecovery: aws.Bool(true)})
	}
	if err != nil {
		return fmt.Errorf("delete secret %s%s of AWS Secrets Manager: %w", s.prefix, name, err)
	}
	return nil
}

// List implements secrets.Store.
func (s *SecretsManager) List(ctx context.Context) ([]string, error) {
	input := &secretsmanager.ListSecretsInput{
		Filters:    []types.Filter{{Key: types.FilterNameStringTypeName, Values: []string{s.prefix}}},
		MaxResults: aws.Int32(100),
	}
	var found []string
	for {
		page, err := s.list(ctx, input)
		if err != nil {
			return nil, fmt.Errorf("list the secrets %s* of AWS Secrets Manager: %w", s.prefix, err)
		}
		for _, secret := range page.SecretList {
			// The filter matches the beginning of a name, and emulators may filter otherwise
			// (https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_Filter.html).
			if name, ours := strings.CutPrefix(aws.ToString(secret.Name), s.prefix); ours && name != "" {
				found = append(found, name)
			}
		}
		if aws.ToString(page.NextToken) == "" {
			slices.Sort(found)
			return found, nil
		}
		input.NextToken = page.NextToken
	}
}
