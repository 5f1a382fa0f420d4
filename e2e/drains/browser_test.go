// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// The initial size of the window, and the size of a small phone.
const (
	desktopWidth, desktopHeight = 1280, 800
	phoneWidth, phoneHeight     = 400, 800
)

// browserBinary returns the path of the browser. Without a browser it skips the test, unless a
// browser is required.
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

// record keeps the requests and the errors of the page.
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

// press sends a key to the element that has the focus.
func (p *browserPage) press(key string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.KeyEvent(key)))
}

// emulate sets the color scheme that the user prefers.
func (p *browserPage) emulate(scheme string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme},
		// Colors in a transition belong to no color scheme.
		{Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	require.NoError(p.t, err)
}

func (p *browserPage) resize(width, height int64) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.EmulateViewport(width, height)))
}

// expectAccessible expects that the page can be used with a keyboard and a screen reader,
// and can be read in both color schemes and on a phone.
func (p *browserPage) expectAccessible(state string) {
	p.t.Helper()
	p.expectTree(state)
	p.expectKeyboard(state)
	for _, scheme := range []string{"light", "dark"} {
		p.emulate(scheme)
		p.expectContrast(state + ", " + scheme)
	}
	p.emulate("light")
	p.resize(phoneWidth, phoneHeight)
	if width := evaluate[int](p, "document.documentElement.scrollWidth"); width > phoneWidth {
		p.t.Errorf("%s: the page is %d pixels wide on a screen of %d", state, width, phoneWidth)
	}
	p.expectTree(state + ", on a phone")
	p.resize(desktopWidth, desktopHeight)
}

// axNode is a node of the accessibility tree.
type axNode struct {
	role, name string
	properties map[string]string
	// live is set in a region whose changes are read aloud as a whole when the reader pauses.
	live bool
}

// tree returns the nodes of the accessibility tree that are not ignored, in their order.
func (p *browserPage) tree() []axNode {
	p.t.Helper()
	result, err := chromedp.Call(p.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	require.NoError(p.t, err)
	var found []axNode
	live := map[accessibility.NodeID]bool{}
	for _, node := range result.Nodes {
		live[node.NodeID] = live[node.ParentID]
		if node.Ignored {
			continue
		}
		n := axNode{role: axText(p.t, node.Role), name: axText(p.t, node.Name), properties: map[string]string{}}
		for _, property := range node.Properties {
			n.properties[string(property.Name)] = axText(p.t, property.Value)
		}
		if n.role == "status" && n.properties["live"] == "polite" && n.properties["atomic"] == "true" {
			live[node.NodeID] = true
		}
		n.live = live[node.NodeID]
		found = append(found, n)
	}
	return found
}

func axText(t *testing.T, value *accessibility.Value) string {
	t.Helper()
	if value == nil || len(value.Value) == 0 {
		return ""
	}
	var decoded any
	require.NoError(t, json.Unmarshal(value.Value, &decoded))
	return fmt.Sprint(decoded)
}

// named are the roles that need a name.
var named = []string{"link", "button", "DisclosureTriangle", "image", "img", "graphics-document", "graphics-symbol", "progressbar",
	"progressIndicator", "meter", "region", "article", "table", "navigation", "heading", "columnheader", "rowheader"}

// expectTree expects landmarks, a hierarchy of headings, names, and a live region in the
// accessibility tree.
func (p *browserPage) expectTree(state string) {
	p.t.Helper()
	count := map[string]int{}
	level, live := 0, false
	summary := evaluate[string](p, `document.getElementById("summary").textContent`)
	for _, node := range p.tree() {
		count[node.role]++
		if node.name == "" && slices.Contains(named, node.role) {
			p.t.Errorf("%s: a node of role %s has no name: %v", state, node.role, node.properties)
		}
		if node.role == "heading" {
			var next int
			_, err := fmt.Sscan(node.properties["level"], &next)
			require.NoError(p.t, err)
			if next > level+1 || level == 0 && next != 1 || level > 0 && next == 1 {
				p.t.Errorf("%s: heading %q of level %d follows one of level %d", state, node.name, next, level)
			}
			level = next
		}
		live = live || node.live && node.role == "StaticText" && node.name == summary
	}
	for _, landmark := range []string{"banner", "navigation", "main", "contentinfo"} {
		if count[landmark] != 1 {
			p.t.Errorf("%s: %d landmarks %s, want 1", state, count[landmark], landmark)
		}
	}
	for _, role := range []string{"table", "row", "columnheader", "rowheader", "cell", "list", "listitem", "region", "article", "link", "DisclosureTriangle"} {
		if count[role] == 0 {
			p.t.Errorf("%s: no node has role %s: %v", state, role, count)
		}
	}
	if !live {
		p.t.Errorf("%s: no polite live region has %q", state, summary)
	}
	if empty := evaluate[int](p, `[...document.querySelectorAll(".tile, .badge")].filter(e => !e.closest(".summary") && !e.textContent.trim()).length`); empty > 0 {
		p.t.Errorf("%s: %d states have a color and no text", state, empty)
	}
}

// interactive are the elements that a user can operate.
const interactive = `[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")].filter(e => e.checkVisibility())`

// focused describes the element that has the focus.
const focused = `(() => {
  const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
  return {
    index: ` + interactive + `.indexOf(e), text: e.textContent.trim(),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    inView: box.width > 0 && box.height > 0 && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth,
  };
})()`

// focus is the value of focused.
type focus struct {
	Index    int    `json:"index"`
	Text     string `json:"text"`
	Outlined bool   `json:"outlined"`
	InView   bool   `json:"inView"`
}

// expectKeyboard expects that Tab reaches every element that can be operated, in the order
// of the page, with a visible focus.
func (p *browserPage) expectKeyboard(state string) {
	p.t.Helper()
	// The next Tab begins at the top of the page.
	evaluate[bool](p, `(() => { document.activeElement.blur(); getSelection().removeAllRanges(); scrollTo(0, 0);
  document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute("tabindex"); return true; })()`)
	count := evaluate[int](p, interactive+".length")
	if count < 5 {
		p.t.Errorf("%s: %d elements can be operated", state, count)
	}
	for want := range count {
		p.press(kb.Tab)
		if got := evaluate[focus](p, focused); got.Index != want || !got.Outlined || !got.InView {
			p.t.Errorf("%s: Tab %d of %d reaches %+v", state, want+1, count, got)
		}
	}
}

// contrasts returns the texts of the page whose contrast to their background is less than 4.5
// (https://www.w3.org/TR/WCAG22/#contrast-minimum), and how many texts there are.
const contrasts = `(() => {
  const parse = (color) => { const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number); return {r, g, b, a}; };
  const luminance = ({r, g, b}) => {
    const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const background = (e) => {
    for (; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.a === 1) return color;
      if (color.a !== 0) throw new Error("a background is translucent");
    }
    return parse(getComputedStyle(document.documentElement).backgroundColor);
  };
  const low = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  for (let node; node = walker.nextNode();) {
    const e = node.parentElement;
    if (!node.nodeValue.trim() || !e.checkVisibility() || e.closest(".hidden, noscript")) continue;
    count++;
    const text = luminance(parse(getComputedStyle(e).color)), behind = luminance(background(e));
    const ratio = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
    if (ratio < 4.5) low.push(node.nodeValue.trim() + ": " + ratio.toFixed(2));
  }
  return {count, low, page: getComputedStyle(document.body).backgroundColor};
})()`

func (p *browserPage) expectContrast(state string) {
	p.t.Helper()
	got := evaluate[struct {
		Count int      `json:"count"`
		Low   []string `json:"low"`
		Page  string   `json:"page"`
	}](p, contrasts)
	if len(got.Low) > 0 || got.Count < 50 {
		p.t.Errorf("%s: of %d texts on %s these have a contrast below 4.5: %q", state, got.Count, got.Page, got.Low)
	}
	p.t.Logf("%s: %d texts on %s", state, got.Count, got.Page)
}
