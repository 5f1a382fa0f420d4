// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package walk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Variables of a walk: its seed, to repeat one, and how long it lasts.
const (
	seedVariable     = "NSTANCE_WALK_SEED"
	durationVariable = "NSTANCE_WALK_DURATION"
)

// TestWalk changes pools while something fails, again and again. After each step everything
// agrees with the model within a limit, and no instance was replaced without a reason.
func TestWalk(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	duration := 3 * time.Minute
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	t.Logf("%s=%d %s=%s", seedVariable, seed, durationVariable, duration)
	random := rand.New(rand.NewPCG(seed, 0))

	m := newModel(t, "walk-a", "walk-b")
	steps := 0
	// Each fault happens once before any happens again.
	var order []fault
	for begin := time.Now(); steps == 0 || time.Since(begin) < duration; steps++ {
		if len(order) == 0 {
			order = shuffled(random)
		}
		next := order[0]
		order = order[1:]
		name := fmt.Sprintf("step %d: %s", steps, next.name)
		if !t.Run(name, func(t *testing.T) {
			from := m.observe(t)
			heal := next.begin(t, random)
			for range 1 + random.IntN(3) {
				t.Log(m.change(t, random, next.withoutWebhooks))
			}
			heal()
			m.resume(t)
			m.expectAgreement(t, from)
		}) {
			break
		}
	}
	t.Logf("%d steps, %d changes", steps, m.changes)
}

func shuffled(random *rand.Rand) []fault {
	order := append([]fault{}, faults...)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}
