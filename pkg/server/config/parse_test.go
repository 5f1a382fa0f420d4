// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		example,
		// Short ones, which stay readable after a change.
		fmt.Sprintf(required, ``, ``),
		`{"cluster": {"leader_election": {"enabled": true, "interval": "5s", "timeout": "1d"}, "secrets": {"old_encryption_keys": [{"file": "/"}, {}, 1]}}}`,
		`{"shard": {"infra": {"provider": "fake", "options": {"endpoint": ["e"], "x": {}}}}}`,
		`{"shard": {"bind": {"health_addr": ":1", "election_addr": "[::]:1"}, "advertise": {"operator_addr": "a:0"}}}`,
		`{"shard": {"subnet_pools": {"p": ["s", "s"], "": []}, "dynamic_subnet_pools": ["p", "q"]}}`,
		`{"shard": {"expiry": {"eligible_age": "2d", "forced_age": "1h"}, "garbage_collection": {"interval": "0s"}, "request_timeout": "1ns"}}`,
		`{"certificates": {"operator": {"ttl": 1e1}}}`,
		`{"defaults": {"userdata": {"inline": "{{.Nonce}}", "url": "http://a/b"}, "vars": {"a": "b"}, "args": {"labels": [{"": 1e9}], "": "{{"}, "files": {"a": {"kind": "json", "x": null}}}}`,
		`{"templates": {"t": {"kind": "knd", "arch": "amd64", "size": -1, "instance_type": "t3.large", "args": {"annotations": {"a/b": "{{end}}"}}}}}`,
		`{"groups": {"default": {"g": {"template": "t", "size": 2147483647, "drain_timeout": "0s"}, "": null}}}`,
		`[]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, providers)
		again, errAgain := Parse(data, providers)
		if diff := cmp.Diff(c, again); diff != "" || text(err) != text(errAgain) {
			t.Fatalf("the second result differs: %s\n%v\n%v", diff, err, errAgain)
		}
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and error %v, want one of them", c, err)
		}
		if err != nil {
			checkPaths(t, err)
			return
		}
		// Other packages rely on this without another check.
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
	require.True(t, ok, "got %T %v, want an InvalidError", err, err)
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
