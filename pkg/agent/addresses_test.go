// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// Machines behind one address have all the connections that a server accepts from it for
// registrations. Another one registers when they have closed one.
func TestMachinesOfOneAddressRegisterOneAfterAnother(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(s.Authority.CertificatePEM())
	var others []*tls.Conn
	for range 32 {
		conn, err := tls.Dial("tcp", s.RegistrationAddr, &tls.Config{RootCAs: authorities, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		others = append(others, conn)
	}
	m.start()
	runtest.Eventually(t, "the agent is not accepted", func() bool { return strings.Contains(m.log.String(), "registration") })
	assert.Empty(t, s.Calls("RegisterAgent"))
	require.NoError(t, others[0].Close())
	m.untilReport(s, time.Time{})
	assert.Len(t, s.Calls("RegisterAgent"), 1)
}
