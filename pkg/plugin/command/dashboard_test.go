// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package command_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"nstance.dev/operator/pkg/plugin/command"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// dashboard is a running dashboard.
type dashboard struct {
	url   string
	ended <-chan error
	stop  context.CancelFunc
}

// startDashboard returns once the command has printed its address.
func startDashboard(t *testing.T, server *plugintest.Server, arguments ...string) dashboard {
	t.Helper()
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	out, in := io.Pipe()
	streams.Out = in
	cmd := command.New(streams)
	cmd.SetArgs(append([]string{"dashboard", "--server", server.URL, "--namespace", plugintest.Namespace}, arguments...))
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.ExecuteContext(ctx)
		_ = in.Close()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	found := regexp.MustCompile(`http://\S+/`).FindString(line)
	require.NotEmpty(t, found, line)
	return dashboard{url: found, ended: ended, stop: stop}
}

func get(t *testing.T, address string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

// The dashboard is served on the loopback address only, until the command is interrupted.
func TestDashboardIsServedUntilTheEnd(t *testing.T) {
	d := startDashboard(t, plugintest.NewServer(t, drained()))
	address, err := url.Parse(d.url)
	require.NoError(t, err)
	if address.Hostname() != "127.0.0.1" {
		t.Errorf("address %s", d.url)
	}
	if code, body := get(t, d.url); code != http.StatusOK || !strings.Contains(body, "Pool workers has settled.") {
		t.Errorf("%d\n%s", code, body)
	}
	d.stop()
	if err := <-d.ended; command.ExitCode(err) != 0 || command.Message(err) != "" {
		t.Errorf("exit code %d with %q", command.ExitCode(err), command.Message(err))
	}
}

// A resource that the user may not read is shown as unknown. All resources are listed in the
// same way as by the other commands, and Secrets are not read.
func TestDashboardShowsUnknownRights(t *testing.T) {
	for _, resource := range []string{
		"nstancemachinepools", "nstanceshardgroups", "nstancemachines", "nstanceclusters", "machinepools", "machines", "nodes", "pods",
		"poddisruptionbudgets", "volumeattachments", "events",
	} {
		t.Run(resource, func(t *testing.T) {
			s := drained()
			plugintest.AddPod(s, "a1", "web-0", nil)
			server := plugintest.NewServer(t, s)
			server.Forbidden = []string{resource}
			_, body := get(t, startDashboard(t, server).url)
			if !strings.Contains(body, "<li>unknown: forbidden to list "+resource+"</li>") &&
				!strings.Contains(body, "<p>unknown: forbidden to list "+resource+"</p>") {
				t.Errorf("forbidden %s are not unknown:\n%s", resource, body)
			}
			for _, request := range server.Requests("") {
				if request.Method != http.MethodGet || request.Name != "" || request.Resource == "secrets" || request.Limit != "500" {
					t.Errorf("request %+v", request)
				}
			}
		})
	}
}

func TestDashboardRefusesFlagsOfTables(t *testing.T) {
	got := run(t, plugintest.NewServer(t, drained()), "dashboard", "-o", "json")
	if got.code != 1 || got.message != "dashboard prints no table: it has neither --output nor --no-headers" {
		t.Errorf("%+v", got)
	}
}
