// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

// reported waits until the server has received reports of an agent, and expects a status.
func (m *machine) reported(s *servertest.Server, after time.Time, want string) {
	m.t.Helper()
	runtest.Eventually(m.t, "the server receives a report", func() bool {
		return m.status(s).GetLastSeen().AsTime().After(after)
	})
	assert.Equal(m.t, want, m.status(s).GetStatus())
}

// An instance is pending until its machine is ready, and stays up afterwards.
func TestTheMachineIsReady(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, m *machine) (set func(ready bool)){
		"when a file exists": func(t *testing.T, m *machine) func(bool) {
			m.Options.ReadyFile = filepath.Join(m.folder, "joined")
			return func(ready bool) {
				if !ready {
					require.NoError(t, os.Remove(m.Options.ReadyFile))
					return
				}
				m.write("joined", nil)
			}
		},
		"when a URL answers": func(t *testing.T, m *machine) func(bool) {
			var ready atomic.Bool
			kubelet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if !ready.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			t.Cleanup(kubelet.Close)
			m.Options.ReadyURL = kubelet.URL + "/healthz"
			return ready.Store
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := servertest.Start(t, withAgents())
			m := newMachine(t, s)
			m.Options.ReportInterval = 200 * time.Millisecond
			set := prepare(t, m)
			m.start()
			m.reported(s, time.Time{}, "pending")
			m.reported(s, time.Now(), "pending")
			m.Options.ReportInterval = time.Hour
			m.stop()
			m.start()
			m.reported(s, time.Now(), "pending")
			set(true)
			// The report does not wait for the interval.
			m.untilReport(s, time.Time{})
			m.stop()
			set(false)
			stopped := time.Now()
			m.start()
			m.reported(s, stopped, "running")
		})
	}
}
