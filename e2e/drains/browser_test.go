// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// The size of the window at first, and that of a small phone.
const (
	desktopWidth, desktopHeight = 1280, 800
	phoneWidth, phoneHeight     = 400, 800
)

// browserBinary returns the path of the browser, or skips the test if none is required.
func browserBinary(t *testing.T) string {
	t.Helper()
	if os.Getenv("NSTANCE_TEST_BROWSER") == "" {
		t.Skip("NOT TESTED: no browser is required. 'make debian-packages' installs one, and 'make test-browser' needs it")
	}
	binary, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("chromium is not installed, run 'make debian-packages': %v", err)
	}
	return binary
}

// browserPage is a page in a browser of its own.
type browserPage struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string
	errors   []string
}

// openPage opens an address in a new browser, which ends with the test.
func openPage(t *testing.T, binary, address string) *browserPage {
	t.Helper()
	fonts, err := filepath.Abs(filepath.Join("testdata", "fonts.conf"))
	require.NoError(t, err)
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		// The tests run as root in containers, where the browser has no sandbox.
		chromedp.ExecPath(binary), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.Env("FONTCONFIG_FILE="+fonts))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p := &browserPage{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(ctx, p.record))
	_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	require.NoError(t, err)
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	require.NoError(t, err)
	p.resize(desktopWidth, desktopHeight)
	p.emulate("light")
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(address)))
	return p
}

// record keeps what the page requests and what it reports as an error.
func (p *browserPage) record(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		p.errors = append(p.errors, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		p.errors = append(p.errors, fmt.Sprintf("console.%s", e.Type))
	case *log.EventEntryAdded:
		p.errors = append(p.errors, fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

// expectNoErrors expects that the page has reported no error, and has sent requests to the
// server at address only.
func (p *browserPage) expectNoErrors(address string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errors) > 0 {
		p.t.Errorf("the console has %q", p.errors)
	}
	own, err := url.Parse(address)
	require.NoError(p.t, err)
	for _, request := range p.requests {
		if to, err := url.Parse(request); err != nil || to.Host != own.Host {
			p.t.Errorf("a request to %s (%v)", request, err)
		}
	}
	if len(p.requests) < 4 {
		p.t.Errorf("requests %q: want the page, its style, its script and the updates", p.requests)
	}
}

// evaluate returns the value of a JavaScript expression.
func evaluate[T any](p *browserPage, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	require.NoError(p.t, err, expression)
	return value
}

// press sends a key to what has the focus.
func (p *browserPage) press(key string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.KeyEvent(key)))
}

// emulate sets the color scheme that the user prefers.
func (p *browserPage) emulate(scheme string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme},
		// Colors in transition are none of a scheme.
		{Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	require.NoError(p.t, err)
}

func (p *browserPage) resize(width, height int64) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.EmulateViewport(width, height)))
}
