// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/testing/tier"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

const window = 10 * time.Second

func process(pod string, restarts int32) Process {
	return Process{Pod: types.UID(pod), Restarts: restarts}
}

// at returns the reading of a counter that grows at a rate since start.
func at(after time.Duration, lifetime, perSecond float64) Reading {
	return Reading{start.Add(after), ptr.To(lifetime + perSecond*after.Seconds())}
}

func TestTheRateDoesNotDependOnHowOftenItIsRead(t *testing.T) {
	for _, every := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 1100 * time.Millisecond, 10 * time.Second, 30 * time.Second} {
		r := NewRates(window)
		known := 0
		for after := time.Duration(0); after < 3*time.Minute; after += every {
			rate, complete := r.Add(map[Process]Reading{process("a", 0): at(after, 1e8, 12_000), process("b", 0): at(after, 5e7, 8_000)})
			if after < window {
				assert.Nil(t, rate, "after %s", after)
				assert.False(t, complete)
				continue
			}
			require.True(t, complete, "every %s, after %s", every, after)
			known++
			if math.Abs(*rate-20_000) > 2_000 {
				t.Fatalf("every %s: the rate is %v after %s, want 20000", every, *rate, after)
			}
		}
		assert.Positive(t, known)
		for p, points := range r.points {
			assert.Less(t, len(points), 30, "%v, every %s", p, every)
		}
	}
}

// A process that misses one reading must not count as an increase from 0 to 1e8.
func TestAMissedReadingDoesNotRaiseTheRate(t *testing.T) {
	r := NewRates(window)
	for i := range 20 {
		after := time.Duration(i) * window
		readings := map[Process]Reading{}
		for _, pod := range []string{"a", "b", "c"} {
			readings[process(pod, 0)] = at(after, 1e8, 1000)
		}
		missed := i%7 == 5
		if missed {
			readings[process("b", 0)] = Reading{At: start.Add(after)}
		}
		rate, complete := r.Add(readings)
		switch {
		case i == 0:
			assert.Nil(t, rate)
		case missed:
			assert.InDelta(t, 2000, ptr.Deref(rate, 0), 1)
			assert.False(t, complete)
		default:
			assert.InDelta(t, 3000, ptr.Deref(rate, 0), 1)
			assert.True(t, complete)
		}
	}
}

func TestARestartNeitherLowersNorRaisesTheRateOfOthers(t *testing.T) {
	r := NewRates(window)
	for i := range 6 {
		after := time.Duration(i) * window
		restarts := int32(0)
		own := at(after, 1e8, 1000)
		if i >= 3 {
			restarts = 1
			own = at(after-3*window, 0, 1000)
			own.At = start.Add(after)
		}
		rate, complete := r.Add(map[Process]Reading{process("a", restarts): own, process("b", 0): at(after, 1e8, 50_000_000)})
		switch i {
		case 0:
			assert.Nil(t, rate)
		case 3:
			assert.InDelta(t, 50_000_000, *rate, 1, "the rate of the restarted process is not known yet")
			assert.False(t, complete)
		default:
			assert.InDelta(t, 50_001_000, *rate, 1)
			assert.True(t, complete)
		}
	}
	assert.Len(t, r.points, 2, "a process that no longer exists is forgotten")
}

// A restart that the Pod does not show yet.
func TestACounterThatFellBeginsAgain(t *testing.T) {
	r := NewRates(window)
	r.Add(map[Process]Reading{process("a", 0): at(0, 1e6, 10)})
	rate, complete := r.Add(map[Process]Reading{process("a", 0): {start.Add(window), ptr.To(5.0)}})
	assert.Nil(t, rate)
	assert.False(t, complete)
	rate, _ = r.Add(map[Process]Reading{process("a", 0): {start.Add(2 * window), ptr.To(105.0)}})
	assert.InDelta(t, 10, *rate, 0.001)
}

func TestAnOldReadingIsNoBase(t *testing.T) {
	r := NewRates(window)
	r.Add(map[Process]Reading{process("a", 0): at(0, 0, 1)})
	rate, _ := r.Add(map[Process]Reading{process("a", 0): at(time.Hour, 0, 1)})
	assert.Nil(t, rate)
}

func TestNoProcessIsNoSignal(t *testing.T) {
	rate, complete := NewRates(window).Add(nil)
	assert.Nil(t, rate)
	assert.False(t, complete)
}

const minutes5 = 5 * time.Minute

// The highest rate counts for the whole window.
func TestPeak(t *testing.T) {
	h := NewHistory(time.Minute)
	now := start
	add := func(rate float64) { h.Add(now, minutes5, ptr.To(rate)) }
	for ; now.Sub(start) < minutes5; now = now.Add(10 * time.Second) {
		add(100)
		assert.Nil(t, h.Peak(now, minutes5), "after %s", now.Sub(start))
	}
	add(100)
	assert.Equal(t, ptr.To(100.0), h.Peak(now, minutes5))
	add(900)
	high := now
	for ; now.Sub(high) <= minutes5; now = now.Add(10 * time.Second) {
		add(100)
		assert.Equal(t, ptr.To(900.0), h.Peak(now, minutes5), "after %s", now.Sub(high))
	}
	now = now.Add(10 * time.Second)
	add(100)
	assert.Equal(t, ptr.To(100.0), h.Peak(now, minutes5))
}

func TestAMissingRateBeginsTheHistoryAgain(t *testing.T) {
	for name, interrupt := range map[string]func(*History, time.Time) time.Time{
		"no rate": func(h *History, now time.Time) time.Time { h.Add(now, minutes5, nil); return now },
		"a pause": func(_ *History, now time.Time) time.Time { return now.Add(time.Minute) },
	} {
		h := NewHistory(time.Minute)
		now := start
		for range 31 {
			h.Add(now, minutes5, ptr.To(1.0))
			now = now.Add(10 * time.Second)
		}
		assert.NotNil(t, h.Peak(now, minutes5))
		now = interrupt(h, now)
		h.Add(now.Add(time.Second), minutes5, ptr.To(1.0))
		assert.Nil(t, h.Peak(now.Add(time.Second), minutes5), name)
	}
}

func TestALongerWindowBeginsWithWhatTheShorterOneKnew(t *testing.T) {
	h := NewHistory(time.Minute)
	now := start
	for range 60 {
		h.Add(now, time.Minute, ptr.To(1.0))
		now = now.Add(10 * time.Second)
	}
	h.Add(now, minutes5, ptr.To(1.0))
	assert.Nil(t, h.Peak(now, minutes5))
	for range 24 {
		now = now.Add(10 * time.Second)
		h.Add(now, minutes5, ptr.To(1.0))
	}
	assert.NotNil(t, h.Peak(now, minutes5))
}

// The peak is never less than any rate of the window, and the memory is bounded.
func TestPeakIsNeverTooLow(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 10)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { testPeakIsNeverTooLow(t, rand.New(rand.NewPCG(seed, 2))) })
	}
}

func testPeakIsNeverTooLow(t *testing.T, random *rand.Rand) {
	for range 50 {
		h := NewHistory(time.Minute)
		now := start
		var rates []point
		for range 500 {
			rate := float64(random.IntN(1000))
			h.Add(now, minutes5, &rate)
			rates = append(rates, point{now, rate})
			highest := 0.0
			for _, p := range rates {
				if now.Sub(p.at) <= minutes5 {
					highest = max(highest, p.total)
				}
			}
			if peak := h.Peak(now, minutes5); peak != nil && *peak < highest {
				t.Fatalf("the peak is %v, the highest rate %v", *peak, highest)
			}
			assert.LessOrEqual(t, len(h.highest), buckets+3)
			now = now.Add(time.Duration(random.IntN(20_000)) * time.Millisecond)
		}
	}
}
