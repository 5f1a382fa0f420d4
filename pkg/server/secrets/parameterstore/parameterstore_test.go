// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package parameterstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/parameterstore"
	"nstance.dev/operator/pkg/server/secrets/secretstest"
)

func opener(url string) func(string) secrets.Store {
	return func(cluster string) secrets.Store {
		prefix := config.DefaultSecretsPrefix(config.SecretsInParameterStore, cluster)
		return parameterstore.New(secretstest.AWSConfig(url), prefix)
	}
}

func TestConformance(t *testing.T) {
	secretstest.Test(t, func(t *testing.T) secretstest.Backend {
		url, faults := secretstest.StartParameterStore(t)
		return secretstest.Backend{Open: opener(url), Faults: faults, Provider: config.SecretsInParameterStore, MaxValue: 4096, Text: true}
	})
}

// TestMoto is the suite with a server of other authors.
func TestMoto(t *testing.T) {
	url := secretstest.StartMoto(t)
	secretstest.TestWithoutFaults(t, func(t *testing.T) secretstest.Backend {
		secretstest.ResetMoto(t, url)
		return secretstest.Backend{Open: opener(url), MaxValue: 4096, Text: true}
	})
}

func TestNamesThatAreRefused(t *testing.T) {
	url, faults := secretstest.StartParameterStore(t)
	s := opener(url)("a")
	faults.Set(secretstest.Lost, 0, 0)
	for _, name := range []string{"", "a b", "ü", "/a", "a//b", "1/2/3/4/5/6/7/8/9/10/11/12/13/14"} {
		require.ErrorContains(t, s.Set(t.Context(), name, []byte("x")), "the name must have")
	}
	require.Zero(t, faults.Count())
}
