// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// dashboardReader is the ServiceAccount of the dashboard, dashboardUser its user name.
const (
	dashboardReader = "dashboard-reader"
	dashboardUser   = "system:serviceaccount:" + installation.Namespace + ":" + dashboardReader
)

// The dashboard shows a pool in a browser, to a user who has only the rights of the ClusterRole in
// the manifests: the pool at rest, while it is scaled, with an unreachable shard, and with a
// blocked drain. The page is updated without being loaded again, and can be used with a keyboard
// and a screen reader.
func TestDashboard(t *testing.T) {
	const name, replicas = "dashboard", 4
	binary := browserBinary(t)
	kubectl := newPluginRunner(t)
	reader := account(t, dashboardReader, readerRole)
	from := env.AuditEnd(t)
	require.NoError(t, env.CreatePoolOn(t.Context(), name, replicas, steadyShard, restartedShard))
	nodes := readyNodes(t, name, replicas)
	env.UntilRunning(t, name, replicas)

	server := kubectl.startDashboard(t, reader)
	page := openPage(t, binary, server.url)
	pool := dashboardPool{page, "#pool-" + installation.Namespace + "-" + name}
	pool.until("the pool is at rest", func(shown shownPool) bool {
		return shown.State == "Ready" && len(shown.Shards) == 2 && shown.Shards[0] == steadyShard+" Ready" && shown.Shards[1] == restartedShard+" Ready" &&
			shown.showsNodes(nodes) && shown.Tiles == replicas
	})
	page.expectAccessible("at rest")
	page.screenshots("at-rest")

	// The user closes the table with the keyboard, and stays there.
	evaluate[bool](page, "(() => { window.loadedOnce = true; document.querySelector('"+pool.selector+" summary').focus(); return true; })()")
	page.press(kb.Enter)
	thaw := testcluster.Freeze(t, env.ShardServer(steadyShard))
	env.Scale(t, name, replicas+2)
	pool.until("the pool is being scaled", func(shown shownPool) bool {
		// The operator finds out after some seconds that the shard does not respond, so a
		// screenshot would not show a pool that is scaled.
		return shown.Wanted == 1 && !shown.Open && shown.Focused && shown.LoadedOnce && (shown.State == "ScalingUp" || !plugintest.Updating())
	})
	page.press(kb.Enter)
	page.screenshots("scaling")
	thaw()
	env.UntilRunning(t, name, replicas+2)
	nodes = readyNodes(t, name, replicas+2)
	pool.until("the pool was scaled", func(shown shownPool) bool {
		return shown.State == "Ready" && shown.showsNodes(nodes) && shown.Wanted == 0 && shown.Open && shown.Focused && shown.LoadedOnce
	})

	testcluster.Kill(t, env.ShardServer(restartedShard))
	pool.until("a shard is away", func(shown shownPool) bool {
		return shown.State == "ShardUnreachable" && strings.HasPrefix(shown.Shards[1], restartedShard+" ShardUnreachable for ") && shown.showsNodes(nodes)
	})
	page.screenshots("shard-away")
	testcluster.Start(t, env.ShardServer(restartedShard))
	env.UntilRunning(t, name, replicas+2)

	env.CreateNamespace(t, name)
	for i, node := range nodes {
		pod := newPod(name, fmt.Sprintf("pod-%d", i), node)
		env.CreatePods(t, timeout, pod)
		protect(t, name, pod.Name)
	}
	env.Scale(t, name, replicas+1)
	var blocked string
	testcluster.Eventually(t, timeout, "the page has the blocked drain", func(context.Context) error {
		for i, node := range nodes {
			text := evaluate[string](page, `document.getElementById("drain-`+node+`")?.innerText ?? ""`)
			if strings.Contains(text, "Blocked") && strings.Contains(text, "PodDisruptionBudget "+budgetOf(fmt.Sprintf("pod-%d", i))+" allows 0 disruptions") {
				blocked = fmt.Sprintf("pod-%d", i)
				return nil
			}
		}
		return errors.New(evaluate[string](page, `document.getElementById("drains").innerText`))
	})
	pool.until("the blocked drain is reported", func(shown shownPool) bool { return strings.Contains(shown.Shards[1], "DrainBlocked") })
	if summary := evaluate[string](page, `document.getElementById("summary").textContent`); !strings.Contains(summary, "blocked.") {
		t.Errorf("the summary is %q", summary)
	}
	page.expectAccessible("blocked")
	page.screenshots("blocked")
	unprotect(t, name, blocked)
	env.UntilRunning(t, name, replicas+1)

	page.expectNoErrors(server.url)
	server.expectEnd(page)
	expectOnlyReads(t, from)
}

// expectOnlyReads expects that the dashboard has sent only list requests, none for Secrets, and
// that each was allowed.
func expectOnlyReads(t *testing.T, from controlplane.Position) {
	t.Helper()
	requests := env.Requests(t, from, func(r controlplane.Request) bool { return r.User == dashboardUser })
	for _, resource := range []string{"nstancemachinepools", "nodes", "pods", "poddisruptionbudgets", "events"} {
		if testcluster.CountResources(requests, resource) == 0 {
			t.Errorf("the dashboard has not listed %s", resource)
		}
	}
	requests = slices.DeleteFunc(requests, func(r controlplane.Request) bool {
		return r.Verb == "list" && r.Resource != "secrets" && r.Code == http.StatusOK
	})
	if len(requests) > 0 {
		t.Errorf("the dashboard has sent other requests: %s", testcluster.Describe(requests))
	}
}

// dashboardPool is a pool on the page.
type dashboardPool struct {
	*browserPage
	selector string
}

// shownPool has the values that the page shows for a pool.
type shownPool struct {
	State     string   `json:"state"`
	Shards    []string `json:"shards"` // with their states
	Instances []string `json:"instances"`
	Tiles     int      `json:"tiles"`
	Wanted    int      `json:"wanted"`
	Open      bool     `json:"open"`
	// Focused is set if the title of the table has the focus.
	Focused    bool `json:"focused"`
	LoadedOnce bool `json:"loadedOnce"`
}

// showsNodes reports whether there is a row for each of the Nodes, and no other.
func (s shownPool) showsNodes(nodes []string) bool {
	rows := strings.Join(s.Instances, "\n")
	for _, node := range nodes {
		if !strings.Contains(rows, "Node "+node+", Ready True") {
			return false
		}
	}
	return len(s.Instances) == len(nodes)
}

// until waits until the page shows a state of the pool.
func (p dashboardPool) until(what string, reached func(shownPool) bool) {
	p.t.Helper()
	testcluster.Eventually(p.t, timeout, what, func(context.Context) error {
		shown := evaluate[shownPool](p.browserPage, `(() => {
  const pool = document.querySelector("`+p.selector+`");
  if (!pool) return {};
  const text = (e, selector) => e.querySelector(selector).textContent.trim();
  return {
    state: text(pool, ".badge"),
    shards: [...pool.querySelectorAll(".shard")].map(e => text(e, "h4") + " " + text(e, ".badge")),
    instances: [...pool.querySelectorAll("tbody tr")].map(e => "Node " + text(e, "[data-label=Node]") + ", Ready " + text(e, "[data-label=Ready]")),
    tiles: pool.querySelectorAll(".tile").length,
    wanted: pool.querySelectorAll(".tile.wanted").length,
    open: pool.querySelector("details")?.open ?? false,
    focused: document.activeElement === pool.querySelector("summary"),
    loadedOnce: window.loadedOnce === true,
  };
})()`)
		if !reached(shown) {
			return fmt.Errorf("the page shows %+v", shown)
		}
		return nil
	})
}

// dashboardServer is a dashboard that runs.
type dashboardServer struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
}

// startDashboard starts the dashboard through kubectl, which replaces its process with the plugin.
func (r pluginRunner) startDashboard(t *testing.T, kubeconfig string) *dashboardServer {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), r.kubectl, "kubectl", "nstance", "dashboard", "--namespace", installation.Namespace)
	cmd.Env = append(os.Environ(), "PATH="+r.path, "KUBECONFIG="+kubeconfig)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(line)
	require.NotEmpty(t, address, line)
	return &dashboardServer{t: t, cmd: cmd, url: address}
}

// expectEnd ends the dashboard as Ctrl-C does, and expects that the page reports it.
func (s *dashboardServer) expectEnd(page *browserPage) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(unix.SIGINT))
	require.NoError(s.t, s.cmd.Wait())
	testcluster.Eventually(s.t, timeout, "the page has no connection", func(context.Context) error {
		if text := evaluate[string](page, `document.getElementById("connection").innerText`); !strings.HasPrefix(text, "No connection to kubectl nstance since ") {
			return fmt.Errorf("the page reports %q", text)
		}
		return nil
	})
}
