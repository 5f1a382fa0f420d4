// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package walk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/tier"
)

// durationVariable is how long a walk lasts at least.
const durationVariable = "NSTANCE_WALK_DURATION"

// leastSteps is how many steps a walk has at least.
const leastSteps = 5

// TestWalk changes pools while something fails, again and again. After each step everything
// agrees with the model within a limit, and no instance was replaced without a reason.
func TestWalk(t *testing.T) {
	duration := tier.Pick(0, 3*time.Minute)
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	random := rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))

	m := newModel(t, "walk-a", "walk-b")
	steps := 0
	// Each fault happens once before any happens again.
	var order []fault
	for begin := time.Now(); steps < leastSteps || time.Since(begin) < duration; steps++ {
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
