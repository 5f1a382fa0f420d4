// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build !noaws

package backend

import (
	"context"
	"fmt"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/awsclient"
	"nstance.dev/operator/pkg/server/secrets/kmskey"
	"nstance.dev/operator/pkg/server/secrets/parameterstore"
	"nstance.dev/operator/pkg/server/secrets/secretsmanager"
)

// openAWS returns the secrets in a service of AWS.
func openAWS(ctx context.Context, c config.Secrets) (secrets.Store, error) {
	client, err := awsclient.LoadConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the secrets of provider %s: %w", c.Provider, err)
	}
	if c.Provider == config.SecretsInSecretsManager {
		return secretsmanager.New(client, c.Prefix), nil
	}
	return parameterstore.New(client, c.Prefix), nil
}

// readAWS returns the value of a secret in a service of AWS.
func readAWS(ctx context.Context, source config.KeySource) ([]byte, error) {
	if source.KMS != nil {
		return readKMS(ctx, source.KMS)
	}
	client, err := awsclient.LoadConfig(ctx)
	if err != nil {
		return nil, err
	}
	if source.SecretsManager != "" {
		return secretsmanager.New(client, "").Get(ctx, source.SecretsManager)
	}
	return parameterstore.New(client, "").Get(ctx, source.ParameterStore)
}

func readKMS(ctx context.Context, key *config.KMSKey) ([]byte, error) {
	client, err := awsclient.LoadConfigOf(ctx, key.Region)
	if err != nil {
		return nil, fmt.Errorf("aws_kms: %w", err)
	}
	return kmskey.Decrypt(ctx, client, key)
}
