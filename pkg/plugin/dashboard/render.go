// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"bytes"
	"embed"
	"html/template"
	"io"
	"time"
)

// assets are the templates and all that the page loads.
//
//go:embed assets
var assets embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"clock":   func(t time.Time) string { return t.Format(time.TimeOnly) },
	"rfc3339": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
}).ParseFS(assets, "assets/*.gohtml"))

// renderPage writes the whole page.
func renderPage(w io.Writer, v *view) error { return templates.ExecuteTemplate(w, "page", v) }

// renderFragment returns the part of the page that changes. Writing to memory does not
// fail, and the tests execute every part of the templates.
func renderFragment(v *view) []byte {
	var fragment bytes.Buffer
	if err := templates.ExecuteTemplate(&fragment, "live", v); err != nil {
		panic(err)
	}
	return fragment.Bytes()
}
