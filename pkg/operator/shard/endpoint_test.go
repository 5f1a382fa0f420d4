// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard_test

import (
	"maps"
	"strings"
	"testing"

	"nstance.dev/operator/pkg/operator/shard"
)

func TestParseEndpoints(t *testing.T) {
	tests := []struct {
		name string
		data map[string]string
		want map[string]shard.Endpoint
		// errs are parts of the error. If it is empty, there must be no error.
		errs []string
	}{{
		name: "no data",
		want: map[string]shard.Endpoint{},
	}, {
		name: "names and addresses, with and without a registration address",
		data: map[string]string{
			"us-west-2a":              "[2001:db8::a]:8993",
			"us-west-2b":              "10.0.0.2:9000",
			"us-west-2c":              "shard-c.example.com:8993\n",
			"us-west-2c.registration": "register.example.com:443",
		},
		want: map[string]shard.Endpoint{
			"us-west-2a": {Operator: "[2001:db8::a]:8993", Registration: "[2001:db8::a]:8992"},
			"us-west-2b": {Operator: "10.0.0.2:9000", Registration: "10.0.0.2:8992"},
			"us-west-2c": {Operator: "shard-c.example.com:8993", Registration: "register.example.com:443"},
		},
	}, {
		name: "every invalid entry is named and the valid ones are returned",
		data: map[string]string{
			"good":                "a:8993",
			"US_west":             "a:8993",
			"a--b":                "a:8993",
			"bare-ipv6":           "2001:db8::a:8993",
			"url":                 "https://host:8993",
			"path":                "host/x:8993",
			"no-port":             "host",
			"no-host":             ":8993",
			"port-zero":           "host:0",
			"port-name":           "host:https",
			"port-large":          "host:65536",
			"empty":               "",
			"orphan.registration": "host:8992",
			".registration":       "host:8992",
			"good.registration":   "nowhere",
		},
		// Only the registration address of "good" is invalid.
		want: map[string]shard.Endpoint{"good": {Operator: "a:8993", Registration: "a:8992"}},
		errs: []string{
			`entry "US_west" with value "a:8993": the key must be a shard id`,
			`entry "a--b" with value "a:8993": the key must be a shard id`,
			`entry "bare-ipv6" with value "2001:db8::a:8993": the value must be host:port with an IPv6 host in brackets`,
			`entry "url" with value "https://host:8993": the value must be host:port`,
			`entry "path" with value "host/x:8993": the host must be a DNS name or an IP address`,
			`entry "no-port" with value "host": the value must be host:port`,
			`entry "no-host" with value ":8993": the host must be`,
			`entry "port-zero" with value "host:0": the port must be a number from 1 to 65535`,
			`entry "port-name" with value "host:https": the port must be`,
			`entry "port-large" with value "host:65536": the port must be`,
			`entry "empty" with value "": the value must be host:port`,
			`entry "orphan.registration" with value "host:8992": there is no valid entry "orphan"`,
			`entry ".registration" with value "host:8992": the key must be a shard id`,
			`entry "good.registration" with value "nowhere": the value must be host:port`,
		},
	}, {
		name: "shards with one address",
		data: map[string]string{
			"a": "host:8993",
			"b": "host:9000",
			"c": "host:08993",
			"d": "other:8993",
		},
		want: map[string]shard.Endpoint{
			"b": {Operator: "host:9000", Registration: "host:8992"},
			"d": {Operator: "other:8993", Registration: "other:8992"},
		},
		errs: []string{`entries ["a" "c"] have the value "host:8993": each shard must have an address of its own`},
	}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := shard.ParseEndpoints(test.data)
			if !maps.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if len(test.errs) == 0 {
				if err != nil {
					t.Errorf("got error %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("got no error")
			}
			if got := strings.Count(err.Error(), "\n") + 1; got != len(test.errs) {
				t.Errorf("got %d errors, want %d:\n%v", got, len(test.errs), err)
			}
			for _, want := range test.errs {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in the error\n%v", want, err)
				}
			}
		})
	}
}
