// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/testing/tier"
)

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
