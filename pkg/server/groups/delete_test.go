// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nstance.dev/operator/pkg/server/instance"
)

func TestDelete(t *testing.T) {
	t.Run("a dynamic group is deleted", func(t *testing.T) {
		s := open(t, newStorage(t))
		upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
		if changed, err := s.Delete(t.Context(), dynamic, nil); !changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if group, found := s.Get(dynamic); found {
			t.Errorf("still exists: %+v", group)
		}
	})
	t.Run("a static group is as configured again", func(t *testing.T) {
		s := open(t, newStorage(t))
		before := get(t, s, main)
		upsert(t, s, main, Change{Size: 8, Settings: Settings{Vars: map[string]string{"a": "b"}}})
		if changed, err := s.Delete(t.Context(), main, nil); !changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if diff := cmp.Diff(before, get(t, s, main)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
	t.Run("nothing stored of a static group", func(t *testing.T) {
		store := newStorage(t)
		if changed, err := open(t, store).Delete(t.Context(), main, nil); changed || err != nil {
			t.Errorf("changed %t, error %v", changed, err)
		}
		if object := readObject(t, store); object.ETag != "" {
			t.Errorf("was written: %s", object.Data)
		}
	})
	t.Run("a malformed key", func(t *testing.T) {
		_, err := open(t, newStorage(t)).Delete(t.Context(), instance.GroupKey{Tenant: "default", Group: "A"}, nil)
		if !errors.As(err, new(*InvalidError)) {
			t.Errorf("got %v, want an InvalidError", err)
		}
	})
}
