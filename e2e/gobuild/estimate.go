// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gobuild

import (
	"bytes"
	"fmt"
	"regexp"
	"sync"
	"time"
)

// named matches a line of go build -v.
var named = regexp.MustCompile(`^[\w.~/-]+$`)

// estimate reads the output of go build -v, and estimates how long the build still takes:
// what is not compiled yet takes as long as what is, in relation to its cost.
type estimate struct {
	mu       sync.Mutex
	line     []byte          // incomplete
	rest     bytes.Buffer    // the end of what names no package
	started  chan struct{}   // closed when the first package compiles, if not nil
	begin    time.Time       // of the first package
	compiled map[string]bool // and those that compile now
	costs    map[string]int64
}

// expect sets what each package costs that had to be compiled.
func (e *estimate) expect(costs map[string]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.costs = costs
}

// Write takes output of go build.
func (e *estimate) Write(data []byte) (int, error) {
	const maxRest = 64 << 10
	e.mu.Lock()
	defer e.mu.Unlock()
	e.line = append(e.line, data...)
	for {
		line, rest, ended := bytes.Cut(e.line, []byte("\n"))
		switch {
		case !ended:
			return len(data), nil
		case !named.Match(line):
			e.rest.Write(e.line[:len(line)+1])
			e.rest.Next(max(0, e.rest.Len()-maxRest))
		case e.compiled == nil:
			e.begin, e.compiled = time.Now(), map[string]bool{string(line): true}
			if e.started != nil {
				close(e.started)
			}
		default:
			e.compiled[string(line)] = true
		}
		e.line = rest
	}
}

// left says how long the build still takes.
func (e *estimate) left(now time.Time) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var total, done int64
	for path, cost := range e.costs {
		total += cost
		if e.compiled[path] {
			done += cost
		}
	}
	elapsed := now.Sub(e.begin)
	switch {
	case e.compiled == nil && bytes.Contains(e.rest.Bytes(), []byte("go: downloading ")):
		return "downloading modules"
	case e.costs != nil && done == total:
		return "linking"
	case done == 0 || elapsed < progressInterval:
		return fmt.Sprintf("package %d", len(e.compiled)) // no estimate yet
	}
	left := time.Duration(float64(elapsed) * float64(total-done) / float64(done)).Round(time.Minute)
	switch left.Minutes() {
	case 0:
		return "less than a minute left"
	case 1:
		return "about a minute left"
	}
	return fmt.Sprintf("about %.0f minutes left", left.Minutes())
}
