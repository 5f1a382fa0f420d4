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

func openParameterStore(url string) func(string) secrets.Store {
	return func(cluster string) secrets.Store {
		prefix := config.DefaultSecretsPrefix(config.SecretsInParameterStore, cluster)
		return awssecrets.NewParameterStore(secretstest.AWSConfig(url), prefix)
	}
}

func TestParameterStore(t *testing.T) {
	secretstest.Test(t, func(t *testing.T) secretstest.Backend {
		url, faults := secretstest.StartParameterStore(t)
		return secretstest.Backend{Open: openParameterStore(url), Faults: faults, Provider: config.SecretsInParameterStore, MaxValue: 4096, Text: true}
	})
}

// TestParameterStoreOfMoto is the suite with a server of other authors.
func TestParameterStoreOfMoto(t *testing.T) {
	url := secretstest.StartMoto(t)
	secretstest.TestWithoutFaults(t, func(t *testing.T) secretstest.Backend {
		secretstest.ResetMoto(t, url)
		return secretstest.Backend{Open: openParameterStore(url), MaxValue: 4096, Text: true}
	})
}

func TestParameterStoreRefusesNames(t *testing.T) {
	url, faults := secretstest.StartParameterStore(t)
	s := openParameterStore(url)("a")
	faults.Set(secretstest.Lost, 0, 0)
	for _, name := range []string{"", "a b", "ü", "/a", "a//b", "1/2/3/4/5/6/7/8/9/10/11/12/13/14"} {
		require.ErrorContains(t, s.Set(t.Context(), name, []byte("x")), "the name must have")
	}
	require.Zero(t, faults.Count())
}
