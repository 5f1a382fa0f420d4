// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/servertest"
)

func TestConfig(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	// All flags may come from the environment.
	t.Setenv("NSTANCE_ADMIN_IDENTITY_DIR", register(t, s))
	t.Setenv("NSTANCE_ADMIN_SERVERS", "us-west-2a="+s.Addr)
	t.Setenv("NSTANCE_ADMIN_SHARD", "us-west-2a")
	row := func(printed string) []string {
		t.Helper()
		lines := strings.Split(printed, "\n")
		if len(lines) != 3 || lines[2] != "" {
			t.Fatalf("printed %q, want a row", printed)
		}
		return strings.Fields(lines[1])
	}
	status := row(mustRun(t, "config", "status"))
	if len(status) != 4 || status[0] != "us-west-2a" {
		t.Fatalf("status is %q", status)
	}
	before := status[1]
	if got := row(mustRun(t, "config", "refresh")); strings.Join(got, " ") != "us-west-2a false "+before+" "+before {
		t.Errorf("nothing has changed, and it printed %q", got)
	}

	edit := func(old, new string) {
		t.Helper()
		content, err := os.ReadFile(s.ConfigPath())
		require.NoError(t, err)
		require.Contains(t, string(content), old)
		require.NoError(t, os.WriteFile(s.ConfigPath(), []byte(strings.ReplaceAll(string(content), old, new)), 0o600))
	}
	edit("// The provider does not read it", "// The provider never reads it")
	refreshed := row(mustRun(t, "config", "refresh"))
	after := row(mustRun(t, "config", "status"))[1]
	if strings.Join(refreshed, " ") != "us-west-2a true "+before+" "+after || after == before {
		t.Errorf("it has changed, and it printed %q and then %q", refreshed, after)
	}

	edit(`"templates"`, `"templatez"`)
	printed, err := run(t, "config", "refresh")
	wantError(t, err, "shard us-west-2a at "+s.Addr+": FailedPrecondition", "templatez")
	if printed != "" {
		t.Errorf("printed %q", printed)
	}
	if got := row(mustRun(t, "config", "status"))[1]; got != after {
		t.Errorf("etag %q is in force, want %q", got, after)
	}
}
