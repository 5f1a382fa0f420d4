// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// TestAnAgentRegistersWithTheSignedIdentityOfItsMachine: a server that requires the identity
// refuses the agent without it, and registers the agent with what the metadata service has signed
// for this registration.
func TestAnAgentRegistersWithTheSignedIdentityOfItsMachine(t *testing.T) {
	t.Parallel()
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		if !strings.HasSuffix(r.URL.Path, "/service-accounts/default/identity") {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprint(w, "signed for "+r.URL.Query().Get("audience"))
	}))
	t.Cleanup(metadata.Close)
	options := withAgents()
	options.VerifyIdentity = func(identity []byte, audience string) error {
		if string(identity) != "signed for "+audience {
			return errors.New("it is for another registration")
		}
		return nil
	}
	s := servertest.Start(t, options)
	m := newMachine(t, s)
	m.start()
	runtest.Eventually(t, "the server refuses the agent", func() bool {
		return strings.Contains(m.log.String(), "code = PermissionDenied") && strings.Contains(m.log.String(), "the agent has not sent the identity")
	})
	m.stop()
	assert.Nil(t, m.registration(s))
	assert.False(t, m.has("identity/identity.crt"))

	m.Options.Provider, m.Options.MetadataURL = "google", metadata.URL
	m.start()
	runtest.Eventually(t, "the agent is registered", func() bool { return m.registration(s) != nil })
}
