// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// maxScreenshot is the size of an image in bytes.
const maxScreenshot = 150 << 10

// screenshots writes docs/images/dashboard-STATE.png with -update. Run the test alone then:
// the page shows the pools of other tests too.
func (p *browserPage) screenshots(state string) {
	p.t.Helper()
	if !plugintest.Updating() {
		return
	}
	root, err := controlplane.FindRoot(".")
	require.NoError(p.t, err)
	// The focus belongs to the test, not to the screenshot.
	evaluate[bool](p, "(() => { window.focusedBefore = document.activeElement; document.activeElement.blur(); return true; })()")
	p.write(filepath.Join(root, "docs", "images", "dashboard-"+state+".png"), chromedp.FullScreenshot(100))
	if state == "blocked" {
		p.emulate("dark")
		p.write(filepath.Join(root, "docs", "images", "dashboard-dark.png"), chromedp.FullScreenshot(100))
		// The pool and the drain: the whole page is too long for a document.
		p.resize(phoneWidth, 2*phoneHeight)
		p.write(filepath.Join(root, "docs", "images", "dashboard-phone.png"), chromedp.CaptureScreenshot())
		p.resize(desktopWidth, desktopHeight)
		p.emulate("light")
	}
	evaluate[bool](p, "(() => { window.focusedBefore.focus({focusVisible: true}); return true; })()")
}

func (p *browserPage) write(path string, screenshot chromedp.Action[[]byte]) {
	p.t.Helper()
	captured, err := chromedp.Run(p.ctx, screenshot)
	require.NoError(p.t, err)
	encoded := withPalette(p.t, captured)
	if len(encoded) > maxScreenshot {
		p.t.Errorf("%s has %d bytes, want at most %d", path, len(encoded), maxScreenshot)
	}
	require.NoError(p.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(p.t, os.WriteFile(path, encoded, 0o644))
}

// withPalette returns an image with its 256 most frequent colors, which is a third as
// large.
func withPalette(t *testing.T, encoded []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(encoded))
	require.NoError(t, err)
	count := map[color.Color]int{}
	bounds := full.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[full.At(x, y)]++
		}
	}
	palette := color.Palette(slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] }))
	reduced := image.NewPaletted(bounds, palette[:min(len(palette), 256)])
	draw.Draw(reduced, bounds, full, bounds.Min, draw.Src)
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced))
	return out.Bytes()
}
