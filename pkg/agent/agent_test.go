// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

func TestAgentRegistersAndReports(t *testing.T) {
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	m.Options.InstanceIPv4, m.Options.InstanceIPv6, m.Options.InstanceHostname = "10.0.0.7", "fd00::7", "machine-7"
	begin := time.Now()
	m.start()
	// The first report does not wait for the interval.
	m.untilReport(s, begin)

	assert.False(t, m.has("identity/nonce.jwt"), "the nonce is removed")
	for _, name := range []string{"identity.key", "identity.pub", "identity.crt", "config.hash"} {
		info, err := os.Stat(filepath.Join(m.folder, "identity", name))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode(), name)
	}
	r := m.registration(s)
	assert.Equal(t, []string{"10.0.0.7", "fd00::7", "machine-7"}, []string{r.IPv4, r.IPv6, r.Hostname})
	assert.Equal(t, string(m.read("identity/identity.pub")), r.PublicKeyPEM)
	assert.Len(t, s.Calls("RegisterAgent"), 1)

	// It does not register again when it starts again.
	m.stop()
	restarted := time.Now()
	m.start()
	m.untilReport(s, restarted)
	assert.Len(t, s.Calls("RegisterAgent"), 1)
}

// The server has bound the instance to the key before its response is lost.
func TestRegistrationSurvivesALostResponse(t *testing.T) {
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	// The relay drops every response of the server to the first call.
	r := &relay{
		cut:  func(int) bool { return len(s.Calls("RegisterAgent")) == 1 },
		lost: func() bool { return m.registration(s) != nil },
	}
	m.Options.RegistrationAddress = r.listen(t, s.RegistrationAddr)
	m.start()
	m.untilReport(s, time.Time{})
	assert.Len(t, s.Calls("RegisterAgent"), 2)
	assert.True(t, r.closed.Load(), "a connection was cut")
	private, err := keys.ParsePrivate(m.read("identity/identity.key"))
	require.NoError(t, err)
	public, err := keys.ParsePublic([]byte(m.registration(s).PublicKeyPEM))
	require.NoError(t, err)
	assert.True(t, public.Equal(private.Public()))
}

// A process that is killed after the key was written has it when it starts again.
func TestRegistrationUsesTheKeyThatExists(t *testing.T) {
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	key, publicPEM := s.AgentKey()
	privatePEM, err := keys.EncodePrivate(key)
	require.NoError(t, err)
	m.write("identity/identity.key", privatePEM)
	m.start()
	m.untilReport(s, time.Time{})
	assert.Equal(t, string(publicPEM), m.registration(s).PublicKeyPEM)
}

// The agent does not repeat a nonce that the server rejected, but it sends another nonce.
func TestRejectedNonceIsNotRepeated(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	valid := m.read("identity/nonce.jwt")
	// The signature belongs to another header.
	parts := strings.Split(string(valid), ".")
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"typ":"JWT","alg":"EdDSA","x":1}`))
	m.write("identity/nonce.jwt", []byte(header+"."+parts[1]+"."+parts[2]))
	m.start()
	runtest.Eventually(t, "the server rejects the nonce", func() bool { return len(s.Calls("RegisterAgent")) == 1 })
	m.write("identity/nonce.jwt", valid)
	m.untilReport(s, time.Time{})
	assert.Len(t, s.Calls("RegisterAgent"), 2)
}

func TestAgentReportsAgainAfterTheServerDied(t *testing.T) {
	o := withAgents()
	s := servertest.Start(t, o)
	m := newMachine(t, s)
	m.start()
	m.untilReport(s, time.Time{})
	s.Kill()
	killed := time.Now()
	s = servertest.Start(t, again(o, s))
	m.untilReport(s, killed)
	// All streams are open again.
	runtest.Eventually(t, "the streams are open", func() bool {
		return len(s.Calls("ReceiveFiles")) > 0 && len(s.Calls("ReceiveKeyRequests")) > 0
	})
}

// The certificates are valid for seconds: each is renewed several times before the server
// would reject it, and the server never sees the agent disconnect for long.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	o := withAgents()
	o.AgentCertificateTTL = "15s"
	s := servertest.Start(t, o)
	m := newMachine(t, s)
	m.Options.ReportInterval = 200 * time.Millisecond
	m.start()
	m.untilReport(s, time.Time{})
	public := m.read("identity/identity.pub")
	first, err := pki.ParseCertificate(m.read("identity/identity.crt"))
	require.NoError(t, err)
	serials := map[string]bool{}
	runtest.Eventually(t, "the certificate was renewed twice", func() bool {
		serials[m.registration(s).CertSerial] = true
		assert.Equal(t, "running", m.status(s).GetStatus())
		return len(serials) >= 3
	})
	runtest.Eventually(t, "the streams are those of the latest certificate", func() bool {
		return len(s.Calls("SubmitHealthReport")) >= 3 && len(s.Calls("ReceiveFiles")) >= 3 && len(s.Calls("ReceiveKeyRequests")) >= 3
	})
	<-time.After(time.Until(first.NotAfter))
	m.untilReport(s, time.Now())
	assert.NotContains(t, m.log.String(), "failed", "no stream ended because of a certificate")
	assert.NotEqual(t, string(public), string(m.read("identity/identity.pub")), "the key stays")
	certificate, err := pki.ParseCertificate(m.read("identity/identity.crt"))
	require.NoError(t, err)
	assert.Equal(t, m.registration(s).CertSerial, certificate.SerialNumber.Text(16))
	assert.Len(t, s.Calls("RegisterAgent"), 1)
}

// An agent whose certificate has expired, because its server did not run, gets another one for its
// old key: with a new nonce, or without any, in the same process or another.
func TestAgentWithAnExpiredCertificateComesBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ nonce, restart bool }{
		"with another nonce": {true, false}, "without a nonce": {false, false}, "without a nonce, after it was restarted": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := withAgents()
			o.AgentCertificateTTL = "10s"
			s := servertest.Start(t, o)
			m := newMachine(t, s)
			m.start()
			m.untilReport(s, time.Time{})
			s.Kill()
			if test.restart {
				m.stop()
			}
			certificate, err := pki.ParseCertificate(m.read("identity/identity.crt"))
			require.NoError(t, err)
			<-time.After(time.Until(certificate.NotAfter))
			restarted := time.Now()
			s = servertest.Start(t, again(o, s))
			if test.nonce {
				m.write("identity/nonce.jwt", []byte(m.nonce))
			}
			if test.restart {
				m.start()
			}
			m.untilReport(s, restarted)
			// The server rejects every call until it leads.
			registrations := slices.DeleteFunc(s.Calls("RegisterAgent"), func(call servertest.Call) bool { return status.Code(call.Err) == codes.Unavailable })
			assert.Len(t, registrations, 1)
			assert.Equal(t, string(m.read("identity/identity.pub")), m.registration(s).PublicKeyPEM)
		})
	}
}

// A notice does not wait for the interval.
func TestTerminationNoticeIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	var announced atomic.Bool
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			_, _ = fmt.Fprint(w, "token")
		case announced.Load():
			_, _ = fmt.Fprint(w, `{"action": "terminate", "time": "2040-01-02T03:04:05Z"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(cloud.Close)
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	m.Options.Provider, m.Options.MetadataURL, m.Options.ReportInterval = "aws", cloud.URL, time.Hour
	m.start()
	m.untilReport(s, time.Time{})
	announced.Store(true)
	runtest.Eventually(t, "the server creates a replacement", func() bool { return len(s.Created()) == 2 })
	assert.Len(t, s.Calls("SubmitHealthReport"), 1, "it is sent over the stream that is open")
}

func TestHealthEndpoints(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	nonce := m.read("identity/nonce.jwt")
	require.NoError(t, os.Remove(filepath.Join(m.folder, "identity", "nonce.jwt")))
	m.Options.HealthAddress = freeAddress(t)
	m.start()
	status := func(path string) int {
		response, err := http.Get("http://" + m.Options.HealthAddress + path)
		if err != nil {
			return 0
		}
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	runtest.Eventually(t, "the process is healthy", func() bool { return status("/healthz") == http.StatusOK })
	assert.Equal(t, http.StatusServiceUnavailable, status("/readyz"))
	m.write("identity/nonce.jwt", nonce)
	runtest.Eventually(t, "the agent is ready", func() bool { return status("/readyz") == http.StatusOK })
	s.Stop()
	runtest.Eventually(t, "the agent is not ready", func() bool { return status("/readyz") == http.StatusServiceUnavailable })
	assert.Equal(t, http.StatusOK, status("/healthz"))
}

// The server limits the connections for registrations from one address. Another machine
// behind this address registers when a connection is closed.
func TestMachinesOfOneAddressRegisterOneAfterAnother(t *testing.T) {
	t.Parallel()
	s := servertest.Start(t, withAgents())
	m := newMachine(t, s)
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(s.Authority.CertificatePEM())
	var others []*grpc.ClientConn
	for range 32 {
		conn, err := grpc.NewClient(s.RegistrationAddr, grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(authorities, "")))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		others = append(others, conn)
		conn.Connect()
		runtest.Eventually(t, "another machine is connected", func() bool { return conn.GetState() == connectivity.Ready })
	}
	m.start()
	runtest.Eventually(t, "the agent is not accepted", func() bool { return strings.Contains(m.log.String(), "Registration failed") })
	assert.Empty(t, s.Calls("RegisterAgent"))
	require.NoError(t, others[0].Close())
	m.untilReport(s, time.Time{})
	assert.Len(t, s.Calls("RegisterAgent"), 1)
}
