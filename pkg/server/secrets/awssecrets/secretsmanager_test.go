// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package awssecrets_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/awssecrets"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
)

func openSecretsManager(url string) func(string) secrets.Store {
	return func(cluster string) secrets.Store {
		prefix := config.DefaultSecretsPrefix(config.SecretsInSecretsManager, cluster)
		return awssecrets.NewSecretsManager(secretstest.AWSConfig(url), prefix)
	}
}

func TestSecretsManager(t *testing.T) {
	secretstest.Test(t, func(t *testing.T) secretstest.Backend {
		url, faults := secretstest.StartSecretsManager(t)
		return secretstest.Backend{Open: openSecretsManager(url), Faults: faults, Provider: config.SecretsInSecretsManager, MaxValue: 65536}
	})
}

// TestSecretsManagerOfMoto is the suite with a server of other authors.
func TestSecretsManagerOfMoto(t *testing.T) {
	url := secretstest.StartMoto(t)
	secretstest.TestWithoutFaults(t, func(t *testing.T) secretstest.Backend {
		secretstest.ResetMoto(t, url)
		return secretstest.Backend{Open: openSecretsManager(url), MaxValue: 65536}
	})
}

// TestANameThatIsUsedAgain: the deletion takes a while, in which the service refuses the name.
func TestANameThatIsUsedAgain(t *testing.T) {
	url, _ := secretstest.StartSecretsManager(t)
	s := openSecretsManager(url)("a")
	for range 2 {
		require.NoError(t, s.Set(t.Context(), "name", []byte("x")))
		require.NoError(t, s.Delete(t.Context(), "name"))
	}
	require.NoError(t, s.Set(t.Context(), "name", []byte("x")))
}

func TestSecretsManagerRefusesNames(t *testing.T) {
	url, faults := secretstest.StartSecretsManager(t)
	s := openSecretsManager(url)("a")
	faults.Set(secretstest.Lost, 0, 0)
	for _, name := range []string{"", "a b", "ü", "a:b"} {
		require.ErrorContains(t, s.Set(t.Context(), name, []byte("x")), "the name must have")
	}
	require.Zero(t, faults.Count())
}
