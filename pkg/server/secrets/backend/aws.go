// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build !noaws

package backend

import (
	"context"
	"fmt"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/awssecrets"
)

// openAWS returns the secrets in a service of AWS.
func openAWS(ctx context.Context, c config.Secrets) (secrets.Store, error) {
	client, err := awssecrets.LoadConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the secrets of provider %s: %w", c.Provider, err)
	}
	if c.Provider == config.SecretsInSecretsManager {
		return awssecrets.NewSecretsManager(client, c.Prefix), nil
	}
	return awssecrets.NewParameterStore(client, c.Prefix), nil
}

// readAWS returns the value of a secret in a service of AWS.
func readAWS(ctx context.Context, source config.KeySource) ([]byte, error) {
	if source.KMS != nil {
		return readKMS(ctx, source.KMS)
	}
	client, err := awssecrets.LoadConfig(ctx)
	if err != nil {
		return nil, err
	}
	if source.SecretsManager != "" {
		return awssecrets.NewSecretsManager(client, "").Get(ctx, source.SecretsManager)
	}
	return awssecrets.NewParameterStore(client, "").Get(ctx, source.ParameterStore)
}

func readKMS(ctx context.Context, key *config.KMSKey) ([]byte, error) {
	client, err := awssecrets.LoadConfigOf(ctx, key.Region)
	if err != nil {
		return nil, fmt.Errorf("aws_kms: %w", err)
	}
	return awssecrets.DecryptKey(ctx, client, key)
}
