// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The windows of a zone follow its clocks when they change. In Berlin they go from 2:00 to 3:00 on
// 29 March 2026, and from 3:00 back to 2:00 on 25 October 2026.
func TestWindowsFollowTheClocks(t *testing.T) {
	const berlin = "Europe/Berlin"
	for name, test := range map[string]struct {
		schedule, zone string
		length         time.Duration
		now            string
		open           bool
		at             string
	}{
		"before it opens":                          {"0 2 * * *", "", 2 * time.Hour, "2026-01-05T01:59:59Z", false, "2026-01-05T02:00:00Z"},
		"when it opens":                            {"0 2 * * *", "", 2 * time.Hour, "2026-01-05T02:00:00Z", true, "2026-01-05T04:00:00Z"},
		"just before it closes":                    {"0 2 * * *", "", 2 * time.Hour, "2026-01-05T03:59:59Z", true, "2026-01-05T04:00:00Z"},
		"when it closes":                           {"0 2 * * *", "", 2 * time.Hour, "2026-01-05T04:00:00Z", false, "2026-01-06T02:00:00Z"},
		"on some days":                             {"0 2 * * 1,3,5", "", 2 * time.Hour, "2026-01-06T02:30:00Z", false, "2026-01-07T02:00:00Z"},
		"over midnight":                            {"0 23 * * 5", "", 6 * time.Hour, "2026-01-10T04:00:00Z", true, "2026-01-10T05:00:00Z"},
		"in winter":                                {"0 1 * * *", berlin, time.Hour, "2026-01-05T00:30:00Z", true, "2026-01-05T01:00:00Z"},
		"in summer":                                {"0 1 * * *", berlin, time.Hour, "2026-07-04T23:30:00Z", true, "2026-07-05T00:00:00Z"},
		"in summer, the time of winter":            {"0 1 * * *", berlin, time.Hour, "2026-07-05T00:30:00Z", false, "2026-07-05T23:00:00Z"},
		"a skipped hour opens none":                {"30 2 * * *", berlin, time.Hour, "2026-03-29T01:10:00Z", false, "2026-03-30T00:30:00Z"},
		"it lasts as long when an hour is missing": {"0 1 * * *", berlin, 3 * time.Hour, "2026-03-29T02:59:00Z", true, "2026-03-29T03:00:00Z"},
		"and when an hour comes twice":             {"0 1 * * *", berlin, 3 * time.Hour, "2026-10-25T01:30:00Z", true, "2026-10-25T02:00:00Z"},
		"a week that opens each minute":            {"* * * * *", "", 168 * time.Hour, "2026-01-05T02:00:30Z", true, "2026-01-12T02:00:00Z"},
		"once a year":                              {"0 3 1 1 *", "", 168 * time.Hour, "2026-01-08T02:59:00Z", true, "2026-01-08T03:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := NewWindow(test.schedule, test.zone, test.length)
			require.NoError(t, err)
			now, err := time.Parse(time.RFC3339, test.now)
			require.NoError(t, err)
			at, open := openUntil([]Window{w}, now)
			assert.Equal(t, test.open, open)
			assert.Equal(t, test.at, at.UTC().Format(time.RFC3339))
		})
	}
}

// An hour that comes twice opens a window at most twice, and not in between days.
func TestAWindowInTheHourThatComesTwice(t *testing.T) {
	w, err := NewWindow("30 2 * * *", "Europe/Berlin", 10*time.Minute)
	require.NoError(t, err)
	var opened []string
	was := false
	for now := time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC); now.Before(time.Date(2026, 10, 26, 12, 0, 0, 0, time.UTC)); now = now.Add(time.Minute) {
		_, open := openUntil([]Window{w}, now)
		if open && !was {
			opened = append(opened, now.Format(time.RFC3339))
		}
		was = open
	}
	assert.Contains(t, opened, "2026-10-25T00:30:00Z")
	assert.Equal(t, "2026-10-26T01:30:00Z", opened[len(opened)-1])
	assert.LessOrEqual(t, len(opened), 3, "%v", opened)
}

func TestSeveralWindows(t *testing.T) {
	night, err := NewWindow("0 2 * * *", "", time.Hour)
	require.NoError(t, err)
	weekend, err := NewWindow("0 0 * * 6", "", 48*time.Hour)
	require.NoError(t, err)
	saturday := time.Date(2026, 1, 10, 2, 30, 0, 0, time.UTC)
	at, open := openUntil([]Window{night, weekend}, saturday)
	assert.True(t, open)
	assert.Equal(t, time.Date(2026, 1, 12, 0, 0, 0, 0, time.UTC), at)
	at, open = openUntil([]Window{weekend, night}, saturday.AddDate(0, 0, 3).Add(time.Hour))
	assert.False(t, open)
	assert.Equal(t, time.Date(2026, 1, 14, 2, 0, 0, 0, time.UTC), at)
	at, open = openUntil(nil, saturday)
	assert.True(t, open)
	assert.True(t, at.IsZero())
}

func TestInvalidWindows(t *testing.T) {
	for name, test := range map[string]struct {
		schedule, zone, want string
		length               time.Duration
	}{
		"four fields":      {"0 2 * *", "", "expected exactly 5 fields", time.Hour},
		"an hour":          {"0 25 * * *", "", "above maximum", time.Hour},
		"a word":           {"@daily", "", "@daily", time.Hour},
		"a zone":           {"0 2 * * *", "Europe/Atlantis", `time zone "Europe/Atlantis" is not known`, time.Hour},
		"the local zone":   {"0 2 * * *", "Local", `time zone "Local" is not known`, time.Hour},
		"a hidden zone":    {"TZ=Europe/Berlin 0 2 * * *", "", "a field of its own", time.Hour},
		"no length":        {"0 2 * * *", "", "never open", 0},
		"a day that is no": {"0 2 31 2 *", "", "the time never comes", time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewWindow(test.schedule, test.zone, test.length)
			require.ErrorContains(t, err, test.want)
		})
	}
}
