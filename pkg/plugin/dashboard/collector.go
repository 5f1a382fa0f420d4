// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"io"
	"sync"
	"time"

	"nstance.dev/operator/pkg/plugin/objects"
)

const (
	// readTimeout is how long a read of all objects may take.
	readTimeout = 30 * time.Second
	// pauseFactor keeps reads of large clusters to a fifth of the time.
	pauseFactor = 4
)

// readFunc reads the objects.
type readFunc func(context.Context) (*objects.Snapshot, error)

// collector reads the objects once for all viewers, and only while there are any.
type collector struct {
	read     readFunc
	interval time.Duration
	source   string
	// demand has an element while a viewer waits for a newer state.
	demand chan struct{}

	mu     sync.Mutex
	latest state
	// changed is closed when latest is replaced.
	changed chan struct{}
}

// state is the result of a read.
type state struct {
	// version is the number of reads until now, 0 before the first read.
	version int
	view    view
	// fragment is the part of the page that changes.
	fragment []byte
	// expires is the earliest time of the next read.
	expires time.Time
}

func newCollector(read readFunc, source string, interval time.Duration) *collector {
	return &collector{read: read, source: source, interval: interval, demand: make(chan struct{}, 1), changed: make(chan struct{})}
}

// run reads whenever a newer state is demanded, with pauses, until ctx is done.
func (c *collector) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.demand:
		}
		begin := time.Now()
		next := c.collect(ctx)
		pause := max(c.interval, pauseFactor*time.Since(begin))
		next.expires = time.Now().Add(pause)
		c.publish(next)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// collect reads the objects. If that fails, it returns the previous view with the error.
func (c *collector) collect(ctx context.Context) state {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var v view
	if snapshot, err := c.read(ctx); err == nil {
		snapshot.Now = time.Now()
		v = newView(snapshot)
	} else {
		c.mu.Lock()
		v = c.latest.view
		c.mu.Unlock()
		v.Failure = err.Error()
	}
	v.Source = c.source
	return state{view: v, fragment: renderFragment(&v)}
}

func (c *collector) publish(next state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next.version = c.latest.version + 1
	c.latest = next
	close(c.changed)
	c.changed = make(chan struct{})
}

// after returns a state with a later version than the given version, and waits for the next
// read if the last state has expired. The error is the error of ctx.
func (c *collector) after(ctx context.Context, version int) (state, error) {
	for waited := false; ; waited = true {
		c.mu.Lock()
		latest, changed := c.latest, c.changed
		c.mu.Unlock()
		if latest.version > version && (waited || time.Now().Before(latest.expires)) {
			return latest, nil
		}
		select {
		case c.demand <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return state{}, ctx.Err()
		}
	}
}

// assets are the templates and the files that the page loads.
//
//go:embed assets
var assets embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"clock":   func(t time.Time) string { return t.Format("15:04:05 MST") },
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
