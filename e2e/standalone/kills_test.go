// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package standalone

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	// maxSize is more than the group has while the server is killed at random, and lastSize is
	// its size in the end.
	maxSize, lastSize = 10, 6
	// pause is how long a server may make no step before it is killed in any case.
	pause = 2 * time.Second
)

// beforeAndAfter are all moments at which a server is killed at a step.
var beforeAndAfter = []when{before, after}

// killAtEachStep kills the server at moments of each step, each time while the size of the
// group changes, and returns how often.
func killAtEachStep(t *testing.T, s *server, o *operator, k *killer, moments []when, steps []string, change int32) (kills int) {
	t.Helper()
	for _, step := range steps {
		for _, at := range moments {
			fired := k.arm(at, func(name string) bool { return name == step })
			s.start()
			kills++
			o.size.Add(change)
			select {
			case <-fired:
			case <-time.After(waitTimeout):
				t.Fatalf("the server did not %s", step)
			}
		}
	}
	return kills
}

// killAtStep starts the server and kills it at a random step, at most after so many others,
// while the group gets a random size.
func killAtStep(s *server, o *operator, k *killer, random *rand.Rand, others int) {
	skip := random.IntN(others + 1)
	at := beforeAndAfter[random.IntN(2)]
	fired := k.arm(at, func(string) bool {
		skip--
		return skip < 0
	})
	s.start()
	o.size.Store(int32(random.IntN(maxSize)))
	select {
	case <-fired:
	case <-time.After(pause):
		if k.disarm() {
			s.kill()
		} else {
			<-fired
		}
	}
}
