// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// agentOptions are those of a provider whose instances run an agent.
type agentOptions struct{ provider.Options }

func (agentOptions) RunsAgent() bool { return true }

// TestAProviderWithAgentsNeedsAnAddressForThem: no instance could ever register.
func TestAProviderWithAgentsNeedsAnAddressForThem(t *testing.T) {
	text := []byte(fmt.Sprintf(required, ``, ``))
	_, err := Parse(text, provider.Registry{providertest.Name: func(o *jsonc.Object) provider.Options {
		return agentOptions{providers[providertest.Name](o)}
	}})
	assert.ErrorContains(t, err, `shard.bind.agent_addr: Invalid value: "": must be host:port`)
	_, err = Parse(text, providers)
	assert.NoError(t, err, "without agents")
}
