// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providerid

import "testing"

func TestMatch(t *testing.T) {
	for name, c := range map[string]struct {
		server, node string
		want         bool
	}{
		"the same":                        {"aws:///us-west-2a/i-0abc", "aws:///us-west-2a/i-0abc", true},
		"aws, bare id":                    {"i-0abc", "aws:///us-west-2a/i-0abc", true},
		"aws, zone and id":                {"us-west-2a/i-0abc", "aws:///us-west-2a/i-0abc", true},
		"aws, two slashes":                {"aws://us-west-2a/i-0abc", "aws:///us-west-2a/i-0abc", true},
		"aws, other zone":                 {"aws:///us-west-2b/i-0abc", "aws:///us-west-2a/i-0abc", false},
		"aws, other id":                   {"i-0abd", "aws:///us-west-2a/i-0abc", false},
		"id with the same suffix":         {"0abc", "aws:///us-west-2a/i-0abc", false},
		"google, name":                    {"knc-1", "gce://project/us-west1-a/knc-1", true},
		"google, zone and name":           {"us-west1-a/knc-1", "gce://project/us-west1-a/knc-1", true},
		"google, other project":           {"gce://other/us-west1-a/knc-1", "gce://project/us-west1-a/knc-1", false},
		"proxmox, number":                 {"10001", "proxmox://10001", true},
		"proxmox, cluster and number":     {"proxmox://lab/10001", "proxmox://lab/10001", true},
		"kwok":                            {"kwok:///us-west-2a/knd0", "kwok:///us-west-2a/knd0", true},
		"another scheme":                  {"aws:///us-west-2a/i-0abc", "gce:///us-west-2a/i-0abc", false},
		"Node without an id":              {"i-0abc", "", false},
		"server without an id":            {"", "aws:///us-west-2a/i-0abc", false},
		"both without":                    {"", "", false},
		"only a scheme":                   {"aws://", "aws:///us-west-2a/i-0abc", false},
		"trailing slash identifies no VM": {"aws:///us-west-2a/", "aws:///us-west-2a/i-0abc", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Match(c.server, c.node); got != c.want {
				t.Errorf("Match(%q, %q) = %t, want %t", c.server, c.node, got, c.want)
			}
			if got := Match(c.node, c.server); got != c.want {
				t.Errorf("Match(%q, %q) = %t, want %t", c.node, c.server, got, c.want)
			}
			if c.want && Key(c.server) != Key(c.node) {
				t.Errorf("keys %q and %q differ for ids that match", Key(c.server), Key(c.node))
			}
		})
	}
}

// FuzzMatchImpliesKey checks that matching ids have the same Key.
func FuzzMatchImpliesKey(f *testing.F) {
	f.Add("i-0abc", "aws:///us-west-2a/i-0abc")
	f.Add("a://b", "b")
	f.Add("/", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		if Match(a, b) != Match(b, a) {
			t.Errorf("Match(%q, %q) is not symmetric", a, b)
		}
		if Match(a, b) && Key(a) != Key(b) {
			t.Errorf("%q and %q match but have keys %q and %q", a, b, Key(a), Key(b))
		}
	})
}
