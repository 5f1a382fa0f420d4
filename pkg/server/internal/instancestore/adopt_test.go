// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instancestore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
)

func TestAdopt(t *testing.T) {
	s := newShard(t, t.TempDir())
	known, deleted := s.add(), s.add()
	require.NoError(s.t, s.RequestDeletion(t.Context(), deleted.ID))
	require.NoError(s.t, s.Remove(t.Context(), deleted.ID))
	running, pending, failed, terminating := newRecord(t), newRecord(t), newRecord(t), newRecord(t)
	running.Tenant, running.Group = "acme", "build"
	running.OnDemand, running.IdempotencyKey = true, "a key"
	s.cloud.show(t, vmOf(known, instance.Running))
	s.cloud.show(t, vmOf(deleted, instance.Running))
	s.cloud.show(t, vmOf(running, instance.Running))
	s.cloud.show(t, instance.VM{ID: pending.ID, Group: pending.Key(), Origin: pending.Origin(), State: instance.Pending})
	s.cloud.show(t, vmOf(failed, instance.Failed))
	s.cloud.show(t, vmOf(terminating, instance.Terminating))
	for range 2 {
		require.NoError(s.t, s.Adopt(t.Context()))
		want := deleted
		want.Returned, want.ProviderID = true, "cloud:///"+deleted.ID
		if diff := cmp.Diff(want, s.stored(deleted)); diff != "" {
			t.Errorf("stored of the returned instance (-want +got):\n%s", diff)
		}
		if i := s.want(deleted.ID); i.BeingDeleted() || !i.DeletedAt.IsZero() {
			t.Errorf("what was decided about the returned instance is still in force: %+v", i)
		}
		for _, adopted := range []instance.Record{running, failed, pending} {
			want := adopted
			want.Adopted = true
			if adopted.ID != pending.ID {
				want.ProviderID = "cloud:///" + adopted.ID
			}
			id, err := puidv7.Parse(adopted.ID)
			require.NoError(s.t, err)
			want.CreatedAt = id.Time()
			if diff := cmp.Diff(want, s.stored(adopted)); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
			i := s.want(adopted.ID)
			vm, _ := s.cloud.Get(adopted.ID)
			if diff := cmp.Diff(instance.Instance{Record: want, State: vm.State, Known: true, Found: true, Stopped: i.Down()}, i); diff != "" {
				t.Errorf("(-want +found):\n%s", diff)
			}
		}
		if i, found := s.Get(terminating.ID); found {
			t.Errorf("adopted a terminating instance: %+v", i)
		}
		if n := len(s.records()); n != 5 {
			t.Errorf("there are %d records, want 5", n)
		}
		s.restart()
	}
}

// TestAdoptContinuesAfterAnError checks that an instance that cannot be adopted
// does not prevent the adoption of the others.
func TestAdoptContinuesAfterAnError(t *testing.T) {
	s := newShard(t, t.TempDir())
	good, bad := newRecord(t), newRecord(t)
	s.cloud.show(t, vmOf(good, instance.Running))
	s.cloud.show(t, vmOf(bad, instance.Running))
	s.cloud.show(t, instance.VM{ID: "no-puidv7", Group: group, State: instance.Running})
	noGroup := newRecord(t)
	noGroup.Group = ""
	s.cloud.show(t, vmOf(noGroup, instance.Running))
	s.storage.intervene(func(_, key string) error {
		if key == keyOf(t, bad) {
			return errStorage
		}
		return nil
	}, nil)
	err := s.Adopt(t.Context())
	if !errors.Is(err, errStorage) {
		t.Errorf("got %v, want the storage's error too", err)
	}
	if err == nil || !strings.Contains(err.Error(), bad.ID) {
		t.Errorf("got %v, want an error that names %s", err, bad.ID)
	}
	if diff := cmp.Diff([]string{good.ID}, ids(s.List(group))); diff != "" {
		t.Errorf("(-want +listed):\n%s", diff)
	}
	// The next attempt.
	s.storage.intervene(nil, nil)
	// The other instances can never be adopted, which is not an error.
	err = s.Adopt(t.Context())
	require.NoError(t, err)
	s.want(bad.ID)
}
