// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"shard": {"infra": {"provider": "kwok", "options": {"instance_types": {"": {}}}}}}`))
	f.Add([]byte(`{"groups": {"": {"": null}}}`))
	f.Add([]byte(`{"defaults": {"userdata": {}, "args": {"labels": [{"": 1e9}], "": "{{"}, "files": {"": {}}}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		again, errAgain := Parse(data)
		if diff := cmp.Diff(c, again); diff != "" || text(err) != text(errAgain) {
			t.Fatalf("the second time it is another: %s\n%v\n%v", diff, err, errAgain)
		}
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and error %v, want one of them", c, err)
		}
		if err != nil {
			checkPaths(t, err)
			return
		}
		// What the other rooms rely on without asking again.
		for tenant, groups := range c.Groups {
			for name, group := range groups {
				template, found := c.Templates[group.Template]
				if !found || template.Size < 0 || ptr.Deref(group.Size, 0) < 0 || ptr.Deref(group.DrainTimeout, 0) < 0 {
					t.Errorf("accepted group %s/%s: %+v of template %+v", tenant, name, group, template)
				}
			}
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// checkPaths checks that every mistake says where it is, unless the text as a
// whole is no JSON.
func checkPaths(t *testing.T, err error) {
	t.Helper()
	invalid, ok := errors.AsType[*InvalidError](err)
	if !ok {
		t.Fatalf("got %T %v, want an InvalidError", err, err)
	}
	mistakes, several := invalid.Mistakes.(interface{ Unwrap() []error })
	if !several {
		return
	}
	for _, mistake := range mistakes.Unwrap() {
		if located, ok := errors.AsType[*field.Error](mistake); !ok || located.Field == "" {
			t.Errorf("%v names no path", mistake)
		}
	}
}
