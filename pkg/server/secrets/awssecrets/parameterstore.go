// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package awssecrets

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

const (
	parameterNotFound = "ParameterNotFound"
	parameterExists   = "ParameterAlreadyExists"
	// maxParameterValue is the limit of a standard parameter, in bytes, see
	// https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_PutParameter.html.
	maxParameterValue = 4096
	// maxParameterName and maxParameterLevels are the service's limits for a name with its
	// prefix.
	maxParameterName   = 900
	maxParameterLevels = 15
)

// parameterNames matches the names that the service accepts.
var parameterNames = regexp.MustCompile(`^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$`)

// ParameterStore is a secrets.Store in Parameter Store. It has only the methods of the client
// that it calls, and not the client: the linker would keep all methods that an interface can
// reach.
type ParameterStore struct {
	prefix string
	get    func(context.Context, *ssm.GetParameterInput, ...func(*ssm.Options)) (*ssm.GetParameterOutput, error)
	put    func(context.Context, *ssm.PutParameterInput, ...func(*ssm.Options)) (*ssm.PutParameterOutput, error)
	remove func(context.Context, *ssm.DeleteParameterInput, ...func(*ssm.Options)) (*ssm.DeleteParameterOutput, error)
	list   func(context.Context, *ssm.GetParametersByPathInput, ...func(*ssm.Options)) (*ssm.GetParametersByPathOutput, error)
}

var _ secrets.Store = (*ParameterStore)(nil)

// NewParameterStore returns the parameters below prefix, which begins and ends with a slash.
// It sends no request.
func NewParameterStore(c aws.Config, prefix string) *ParameterStore {
	client := ssm.NewFromConfig(c, func(o *ssm.Options) { o.HTTPClient = deadline.HTTPClient(o.HTTPClient.Do) })
	return &ParameterStore{
		prefix: prefix,
		get:    client.GetParameter,
		put:    client.PutParameter,
		remove: client.DeleteParameter,
		list:   client.GetParametersByPath,
	}
}

// Get implements secrets.Store.
func (s *ParameterStore) Get(ctx context.Context, name string) ([]byte, error) {
	output, err := s.get(ctx, &ssm.GetParameterInput{Name: aws.String(s.prefix + name), WithDecryption: aws.Bool(true)})
	switch {
	case code(err) == parameterNotFound:
		err = storage.ErrNotFound
	case err == nil && (output.Parameter == nil || output.Parameter.Value == nil):
		err = errors.New("the response has no value")
	}
	if err != nil {
		return nil, fmt.Errorf("read parameter %s%s of AWS Parameter Store: %w", s.prefix, name, err)
	}
	return []byte(*output.Parameter.Value), nil
}

// Create implements secrets.Store. If the response of a request was lost, the SDK repeats
// it, and the parameter that it has created is a conflict: the caller reads it.
func (s *ParameterStore) Create(ctx context.Context, name string, data []byte) error {
	return s.write(ctx, name, data, false)
}

// Set implements secrets.Store.
func (s *ParameterStore) Set(ctx context.Context, name string, data []byte) error {
	return s.write(ctx, name, data, true)
}

func (s *ParameterStore) write(ctx context.Context, name string, data []byte, overwrite bool) error {
	err := s.check(name, data)
	if err == nil {
		_, err = s.put(ctx, &ssm.PutParameterInput{
			Name: aws.String(s.prefix + name), Value: aws.String(string(data)), Overwrite: aws.Bool(overwrite),
			Type: types.ParameterTypeSecureString, Tier: types.ParameterTierStandard,
		})
		if code(err) == parameterExists {
			err = storage.ErrConflict
		}
		err = withoutParameter(err)
	}
	if err != nil {
		return fmt.Errorf("store parameter %s%s of AWS Parameter Store: %w", s.prefix, name, err)
	}
	return nil
}

func withoutParameter(err error) error {
	if errors.Is(err, storage.ErrConflict) {
		return err
	}
	return withoutValue(err)
}

// check returns the reason why the service cannot store a secret.
func (s *ParameterStore) check(name string, data []byte) error {
	full := s.prefix + name
	switch {
	case !parameterNames.MatchString(name) || len(full) > maxParameterName || strings.Count(full, "/") > maxParameterLevels:
		return fmt.Errorf("the name must have letters, digits and _.-, at most %d levels and at most %d characters, with the prefix", maxParameterLevels, maxParameterName)
	case len(data) == 0 || len(data) > maxParameterValue:
		return fmt.Errorf("the value has %d bytes, must have 1 to %d", len(data), maxParameterValue)
	case !utf8.Valid(data):
		return errors.New("the value is not UTF-8, and a parameter is text: encode it, or use another provider of secrets")
	}
	return nil
}

// Delete implements secrets.Store.
func (s *ParameterStore) Delete(ctx context.Context, name string) error {
	_, err := s.remove(ctx, &ssm.DeleteParameterInput{Name: aws.String(s.prefix + name)})
	if code(err) == parameterNotFound {
		err = storage.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("delete parameter %s%s of AWS Parameter Store: %w", s.prefix, name, err)
	}
	return nil
}

// List implements secrets.Store.
func (s *ParameterStore) List(ctx context.Context) ([]string, error) {
	path := strings.TrimSuffix(s.prefix, "/")
	input := &ssm.GetParametersByPathInput{Path: &path, Recursive: aws.Bool(true)}
	var found []string
	for {
		page, err := s.list(ctx, input)
		if err != nil {
			return nil, fmt.Errorf("list the parameters %s* of AWS Parameter Store: %w", s.prefix, err)
		}
		for _, parameter := range page.Parameters {
			if name, ours := strings.CutPrefix(aws.ToString(parameter.Name), s.prefix); ours {
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
