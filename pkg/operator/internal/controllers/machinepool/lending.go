// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/distribute"
)

// lending is the division of a pool whose shards lend instances to each other
// (docs/operations.md#a-zone-without-stock).
type lending struct {
	spreading
	// lent is by shard as distribute.Stock.Lent, and notes are the values of AnnotationLent.
	lent  []int32
	notes []string
	// moved is set if an instance moves from one shard to another.
	moved bool
}

// lend returns the division of a pool that has lent instances, or has a shortfall to lend,
// and nil for others. Those are divided as if there were no stock.
//
// spread is what they would get: instances are lent only while the sizes do not change for
// another reason.
func lend(observed observation, spread spreading, replicas int32, keepsMachines bool) *lending {
	shards, stocks := make([]distribute.Shard, len(observed.shards)), make([]distribute.Stock, len(observed.shards))
	lent, due, interrupted := false, false, false
	for i := range observed.shards {
		shard := &observed.shards[i]
		shards[i], stocks[i] = shard.distributeShard(), shard.stock()
		note := shard.lentNote(observed.pool)
		stocks[i].Lent = note.lent
		lent = lent || note.lent != 0
		interrupted = interrupted || note.lent > 0 && note.replicas == replicas
		due = due || stocks[i].Due
	}
	moves := observed.mayMove && observed.pool.Spec.OnShortfall == v1beta1.ShortfallMove
	stays := distribute.Total(distribute.Sizes(shards)) == replicas && slices.Equal(distribute.Sizes(shards), spread.sizes)
	if !lent && (!due || !moves || !stays) {
		return nil
	}
	machines := hasMachines(observed)
	loans := distribute.Lend(shards, stocks, replicas, distribute.LendOptions{
		Candidates:  observed.candidates,
		Even:        !machines,
		MayMove:     moves,
		Interrupted: interrupted,
	})
	if !lent && !loans.Moved {
		return nil
	}
	result := &lending{lent: loans.Lent, moved: loans.Moved, spreading: spreading{sizes: loans.Sizes, kept: func(*shardState) string { return "" }}}
	if machines && keepsMachines {
		result.kept = (*shardState).keptNote
	}
	for i := range shards {
		result.removeFirst = append(result.removeFirst, shards[i].NextRemoveFirst(loans.Sizes[i], loans.Selected[i]))
		result.notes = append(result.notes, lentNote{loans.Lent[i], replicas}.format(observed.pool))
	}
	return result
}

// divide divides the replicas among the shards, with the loans of a pool that has any.
func divide(observed observation, replicas int32, keepsMachines bool) (spreading, *lending) {
	divided := spread(observed, replicas, keepsMachines)
	if loans := lend(observed, divided, replicas, keepsMachines); loans != nil {
		return loans.spreading, loans
	}
	return divided, nil
}

// noteOf returns the value of AnnotationLent of a shard, "" for none.
func (l *lending) noteOf(shard int) string {
	if l == nil {
		return ""
	}
	return l.notes[shard]
}

// stock returns what is known of the stock of a shard.
func (s *shardState) stock() distribute.Stock {
	stock := distribute.Stock{Usable: s.configured && s.synced && s.reachable}
	if stock.Usable && s.reported != nil {
		stock.Missing = s.reported.Shortfall.Missing
		stock.Due = stock.Missing > 0 && s.shortfallDue
	}
	return stock
}

// lentNote is the value of AnnotationLent.
type lentNote struct {
	// lent is distribute.Stock.Lent, of replicas.
	lent, replicas int32
}

// format returns "" if nothing is lent.
func (n lentNote) format(pool *v1beta1.NstanceMachinePool) string {
	if n.lent == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %s", n.lent, keptNote(pool, n.replicas))
}

// lentNote returns what the shard group says, zero if it has no annotation, or one for
// other shards: the shares are those of the present shards then.
func (s *shardState) lentNote(pool *v1beta1.NstanceMachinePool) lentNote {
	if s.group == nil {
		return lentNote{}
	}
	value := s.group.Annotations[v1beta1.AnnotationLent]
	var note lentNote
	if _, err := fmt.Sscanf(value, "%d of %d over", &note.lent, &note.replicas); err != nil || note.format(pool) != value {
		return lentNote{}
	}
	return note
}

// shrinkFirst orders the shard groups of a move: those that lend are written first, so
// that the sum of the sizes never exceeds the replicas.
func shrinkFirst(shards []shardState, wanted []wantedShardGroup) {
	for i := range wanted {
		at := slices.IndexFunc(shards, func(s shardState) bool { return s.id == string(wanted[i].spec.Shard) })
		wanted[i].afterOthers = wanted[i].spec.Size > shards[at].currentSize()
	}
	slices.SortStableFunc(wanted, func(a, b wantedShardGroup) int {
		switch {
		case a.afterOthers == b.afterOthers:
			return 0
		case b.afterOthers:
			return -1
		default:
			return 1
		}
	})
}

// describeLoans returns which shards have lent how many instances to which others, "" if
// none has.
func describeLoans(observed observation, lent []int32, replicas int32) string {
	var lenders, borrowers []string
	var total int32
	for i, n := range lent {
		switch {
		case n > 0:
			total += n
			lenders = append(lenders, fmt.Sprintf("%s (%d)", observed.shards[i].id, n))
		case n < 0:
			borrowers = append(borrowers, fmt.Sprintf("%s (%d)", observed.shards[i].id, -n))
		}
	}
	if total == 0 {
		return ""
	}
	from := "shards " + strings.Join(lenders, ", ")
	if len(lenders) == 1 {
		from = "shard " + strings.TrimSuffix(lenders[0], fmt.Sprintf(" (%d)", total))
	}
	to := "other shards"
	if len(borrowers) > 0 {
		to = "shards " + strings.Join(borrowers, ", ")
	}
	if len(borrowers) == 1 {
		to = "shard " + borrowers[0]
	}
	return fmt.Sprintf("%d of %d instances are lent by %s to %s", total, replicas, from, to)
}
