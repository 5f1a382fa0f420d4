// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the images of the programs have no time zones

	"github.com/robfig/cron/v3"
)

// Window is a time in which a rotation may start replacements. It opens again and again.
type Window struct {
	schedule cron.Schedule
	length   time.Duration
}

// fields are the five fields of a schedule, as in a CronJob.
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// NewWindow returns the window that opens at each time of a schedule with the five fields of cron,
// in an IANA time zone, and stays open for length. An empty zone is UTC. A time that the clocks of
// the zone skip opens no window.
func NewWindow(schedule, zone string, length time.Duration) (Window, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return Window{}, fmt.Errorf("time zone %q is not known", zone)
	}
	if length <= 0 {
		return Window{}, fmt.Errorf("a window of %s is never open", length)
	}
	if strings.Contains(schedule, "TZ") {
		return Window{}, fmt.Errorf("schedule %q: a time zone is a field of its own", schedule)
	}
	parsed, err := fields.Parse(schedule)
	if err != nil {
		return Window{}, fmt.Errorf("schedule %q: %w", schedule, err)
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return Window{}, fmt.Errorf("schedule %q has not the five fields of cron", schedule)
	}
	spec.Location = location
	if spec.Next(time.Now()).IsZero() {
		return Window{}, fmt.Errorf("schedule %q: %w", schedule, errNever)
	}
	return Window{schedule: spec, length: length}, nil
}

var errNever = errors.New("the time never comes")

// open returns until when a window that is open now stays open, and false if it is closed.
func (w Window) open(now time.Time) (until time.Time, open bool) {
	// The last opening is searched in growing steps: a window may be a week long and open each minute.
	for back := min(time.Minute, w.length); ; back = min(2*back, w.length) {
		var last time.Time
		for at := w.schedule.Next(now.Add(-back)); !at.IsZero() && !at.After(now); at = w.schedule.Next(at) {
			last = at
		}
		if !last.IsZero() {
			return last.Add(w.length), now.Before(last.Add(w.length))
		}
		if back == w.length {
			return time.Time{}, false
		}
	}
}

// Open returns until when a rotation may start replacements, and false with the next opening if all
// windows are closed. Without windows the time is zero.
func (p *Policy) Open(now time.Time) (at time.Time, open bool) { return openUntil(p.Windows, now) }

// openUntil returns until when one of the windows is open, and false with the next opening if all
// are closed. Without windows it is always open, and the time is zero.
func openUntil(windows []Window, now time.Time) (at time.Time, open bool) {
	if len(windows) == 0 {
		return time.Time{}, true
	}
	for _, w := range windows {
		if until, is := w.open(now); is && until.After(at) {
			at, open = until, true
		}
	}
	if open {
		return at, true
	}
	for _, w := range windows {
		if next := w.schedule.Next(now); !next.IsZero() && (at.IsZero() || next.Before(at)) {
			at = next
		}
	}
	return at, false
}
