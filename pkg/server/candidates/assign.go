// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package candidates

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Choice is a candidate as instances are compared with it.
type Choice struct {
	// Hash is the hash of the settings with which instances of the candidate are created. Several
	// candidates may have the same, such as the base and the last resort.
	Hash string
	// Max is how many instances may be of the candidate, nil for no limit.
	Max *int32
}

// room returns how many more instances may be of a candidate that has count instances.
func (c Choice) room(count int) int {
	const unlimited = 1 << 30
	if c.Max == nil {
		return unlimited
	}
	return max(0, int(*c.Max)-count)
}

// Instance is an instance as it is compared with candidates.
type Instance struct {
	ID        string
	Hash      string
	CreatedAt time.Time
}

// None is the candidate of an instance whose hash no candidate has.
const None = -1

// Assign returns the index of the candidate of each instance: the first of its hash that has room, the
// oldest instance first. So an instance of the last resort becomes one of the base when the base gets
// room. An instance for which no candidate of its hash has room has the last of them: another maximum
// replaces nothing. Order and number of calls do not matter.
func Assign(choices []Choice, instances []Instance) []int {
	order := byAge(instances)
	assigned, counts := make([]int, len(instances)), make([]int, len(choices))
	for _, n := range order {
		assigned[n] = None
		for at, c := range choices {
			if c.Hash != instances[n].Hash {
				continue
			}
			assigned[n] = at
			if c.room(counts[at]) > 0 {
				break
			}
		}
		if assigned[n] != None {
			counts[assigned[n]]++
		}
	}
	return assigned
}

// Count returns how many instances each of the candidates has.
func Count(choices []Choice, assigned []int) []int {
	counts := make([]int, len(choices))
	for _, at := range assigned {
		if at != None {
			counts[at]++
		}
	}
	return counts
}

// Next returns the order in which candidates are tried for the next instance: the best that is below
// its maximum and available comes first. A candidate with the hash of an earlier one is left out: the
// cloud would give the same answer. counts are the numbers of instances that the candidates have, and
// available may be nil, if nothing is known.
func Next(choices []Choice, counts []int, available func(int) bool) []int {
	var order []int
	for at, c := range choices {
		tried := slices.ContainsFunc(order, func(earlier int) bool { return choices[earlier].Hash == c.Hash })
		if !tried && c.room(counts[at]) > 0 && (available == nil || available(at)) {
			order = append(order, at)
		}
	}
	return order
}

// Returns has the instances that are to be replaced by instances of a better candidate.
type Returns struct {
	Choices []Choice
	// Instances are the instances that are not being deleted, and Assigned is the result of Assign.
	Instances []Instance
	Assigned  []int
	// Size is how many instances the group should have. Missing instances take the room of better
	// candidates first. Surplus instances of better candidates may be replacements already.
	Size int
	// Surge is how many surplus instances may be replacements.
	Surge int
	// Available reports whether a candidate is known to be available.
	Available func(int) bool
	// Exists reports whether the provider has an instance, nil if it has all. What does not exist takes
	// room, and is neither replaced nor a replacement.
	Exists func(int) bool
	// Requested reports whether an instance that does not exist is being created. It is a replacement as
	// long as its candidate is available: the instance that it replaces has left its room to it. Nil means
	// that there are none.
	Requested func(int) bool
}

// Find returns, for each instance, whether it should be of a better candidate that has room for it.
// Instances of the last candidate come first, and the oldest among equals. An instance that has its
// replacement already stays not preferred, so that it leaves for this reason.
func (r Returns) Find() []bool {
	counts := Count(r.Choices, r.Assigned)
	rooms := make([]int, len(r.Choices))
	for at, c := range r.Choices {
		rooms[at] = c.room(counts[at])
	}
	for range r.Size - len(r.Instances) {
		if at := r.better(rooms, len(rooms)); at != None {
			rooms[at]--
		}
	}
	order := byAge(r.Instances)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(r.Assigned[b], r.Assigned[a]) })
	found := make([]bool, len(r.Instances))
	replacements := map[int]bool{}
	for _, n := range order {
		if r.Assigned[n] == None || !r.exists(n) {
			continue // without a candidate it is outdated for another reason
		}
		if at := r.better(rooms, r.Assigned[n]); at != None {
			rooms[at]--
			found[n] = true
		} else if len(replacements) < min(r.Surge, len(r.Instances)-r.Size) {
			if by := r.replacement(n, replacements); by != None {
				replacements[by] = true
				found[n] = true
			}
		}
	}
	return found
}

// better returns the best available candidate with room before a candidate, or None.
func (r Returns) better(rooms []int, before int) int {
	for at := range before {
		if rooms[at] > 0 && r.Available(at) && r.Choices[at].Hash != r.hashOf(before) {
			return at
		}
	}
	return None
}

// hashOf returns the hash of a candidate, "" behind the last one.
func (r Returns) hashOf(at int) string {
	if at >= len(r.Choices) {
		return ""
	}
	return r.Choices[at].Hash
}

// replacement returns an instance of a better candidate that is younger than an instance, or None.
func (r Returns) replacement(n int, others map[int]bool) int {
	for _, other := range byAge(r.Instances) {
		younger := r.Instances[other].CreatedAt.After(r.Instances[n].CreatedAt)
		if at := r.Assigned[other]; at != None && at < r.Assigned[n] && younger && !others[other] && r.replaces(other) {
			return other
		}
	}
	return None
}

// replaces reports whether an instance can be a replacement.
func (r Returns) replaces(n int) bool {
	return r.exists(n) || r.Requested != nil && r.Requested(n) && r.Available(r.Assigned[n])
}

func (r Returns) exists(n int) bool { return r.Exists == nil || r.Exists(n) }

// byAge returns the indexes of instances, the oldest first.
func byAge(instances []Instance) []int {
	order := make([]int, len(instances))
	for n := range instances {
		order[n] = n
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(instances[a].CreatedAt.Compare(instances[b].CreatedAt), strings.Compare(instances[a].ID, instances[b].ID))
	})
	return order
}
