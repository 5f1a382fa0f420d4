// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestInvalid changes one part of the example and expects exactly its mistakes.
func TestInvalid(t *testing.T) {
	tests := []struct{ name, old, new, want string }{
		{"cluster id", `"id": "prod"`, `"id": "a--b"`, `cluster.id: Invalid value: "a--b": "a--b" must not contain consecutive hyphens`},
		{"missing cluster id", `"id": "prod",`, ``, `cluster.id: Invalid value: "": must not be empty`},
		{"cluster id like an instance id", `"id": "prod"`, `"id": "knc06bgm7733st2576nx5jht4ecjw"`, `cluster.id: Invalid value: "knc06bgm7733st2576nx5jht4ecjw": must not have the form of an instance id`},
		{"unknown key", `"id": "prod"`, `"id": "prod", "name": {"x": /* why */ 1}`, `cluster.name: Invalid value: {"x":1}: unknown key, allowed are id, leader_election, secrets`},
		{"unknown key at the top", `"cluster":`, `"clusters": [], "cluster":`, `clusters: Invalid value: []: unknown key, allowed are certificates, cluster, defaults, groups, load_balancers, shard, templates`},
		{"unknown key in a list", `{"env": "NSTANCE_OLDER_KEY"}`, `{"env": "NSTANCE_OLDER_KEY", "x": 1}`, `cluster.secrets.old_encryption_keys[1].x: Invalid value: unknown key, allowed are aws_kms, aws_parameter_store, aws_secrets_manager, env, file, google_secret_manager`},
		{"key of another kind of election", `"interval": "2s"`, `"interval": "2s", "infrequent": "30s"`, `shard.leader_election.infrequent: Invalid value: "30s": unknown key, allowed are enabled, interval, timeout`},
		{"key given twice", `"id": "prod"`, `"id": "prod", "id": "prod"`, `cluster.id: Duplicate value: "id"`},
		{"key of an argument given twice", `"example.com/Role": "worker"`, `"a": "b", "a": "b"`, `templates.worker.args.labels.a: Duplicate value: "a"`},
		{"wrong type of text", `"id": "prod"`, `"id": 7`, `cluster.id: Invalid value: 7: must be a string`},
		{"wrong type of object", `{"operator": {"ttl": 48}, "agent": {"ttl": "36h"}}`, `"x"`, `certificates: Invalid value: "x": must be an object`},
		{"wrong type of boolean", `"enabled": false`, `"enabled": "false"`, `cluster.leader_election.enabled: Invalid value: "false": must be true or false`},
		{"wrong type of duration", `"4m"`, `240`, `shard.default_drain_timeout: Invalid value: 240: must be a string`},
		{"wrong type of list", `["default"]`, `"default"`, `shard.dynamic_subnet_pools: Invalid value: "default": must be a list of strings`},
		{"wrong type in a list", `"subnet-b"`, `null`, `shard.subnet_pools.default[1]: Invalid value: null: must be a string`},
		{"wrong type of number", `"size": 3`, `"size": "3"`, `groups.default.arm.size: Invalid value: "3": must be an integer of at most 32 bits`},
		{"empty duration", `"29s"`, `""`, `shard.request_timeout: Invalid value: "": must be a duration`},
		{"limits of the wrong type", `"size": 3`, `"size": 3, "limits": 2`, `groups.default.arm.limits: Invalid value: 2: must be an object`},
		{"unknown limit", `"size": 3`, `"size": 3, "limits": {"x": 2}`, `groups.default.arm.limits.x: Invalid value: 2: unknown key, allowed are drain_timeout, instance_types, load_balancers, max_size, min_size, on_demand, subnet_pools, vars`},
		{"negative limit of drain timeouts", `"size": 3`, `"size": 3, "limits": {"drain_timeout": "-1s"}`, `groups.default.arm.limits.drain_timeout: Invalid value: "-1s": must be a duration that is not negative`},
		{"label of Nodes", `"size": 3`, `"size": 3, "node": {"labels": {"a": "b c"}}`, `groups.default.arm.node.labels[a]: Invalid value: "b c": a valid label must be`},
		{"taint of Nodes", `{"role": "worker"}`, `{"role": "worker"}, "node": {"taints": [{"key": "a", "effect": "x"}]}`, `templates.worker.node.taints[0].effect: Unsupported value: "x"`},
		{"maximum of Pods", `{"role": "worker"}`, `{"role": "worker"}, "node": {"max_pods": -1}`, `templates.worker.node.max_pods: Invalid value: -1: must be between 0 and 1000, inclusive`},
		{"unknown key of Nodes", `"size": 3`, `"size": 3, "node": {"label": 1}`, `groups.default.arm.node.label: Invalid value: 1: unknown key, allowed are labels, max_pods, taints`},
		{"negative minimum", `"size": 3`, `"size": 3, "limits": {"min_size": -1}`, `groups.default.arm.limits.min_size: Invalid value: -1: must not be negative`},
		{"minimum above the size", `"size": 3`, `"size": 3, "limits": {"min_size": 4}`, `groups.default.arm.limits.min_size: Invalid value: 4: must be at most the size of the group, 3`},
		{"minimum above the maximum", `"size": 3`, `"size": 3, "limits": {"min_size": 3, "max_size": 2}`, `groups.default.arm.limits.min_size: Invalid value: 3: must be at most 2 (max_size of the group or the shard)`},
		{"maximum of 0", `"size": 3`, `"size": 3, "limits": {"max_size": 0}`, `groups.default.arm.limits.max_size: Invalid value: 0: must be from 1 to 10000`},
		{"pattern of vars", `"size": 3`, `"size": 3, "limits": {"vars": ["a", "[b"]}`, `groups.default.arm.limits.vars[1]: Invalid value: "[b": must be a name or a pattern, such as "team-*"`},
		{"pattern of a template", `{"role": "worker"}`, `{"role": "worker"}, "limits": {"subnet_pools": ["[b"]}`, `templates.worker.limits.subnet_pools[0]: Invalid value: "[b": must be a name or a pattern`},
		{"candidates of the wrong type", `"size": 3`, `"size": 3, "candidates": {}`, `groups.default.arm.candidates: Invalid value: {}: must be a list of objects`},
		{"unknown key of a candidate", `{"role": "worker"}`, `{"role": "worker"}, "candidates": [{"name": "a", "max": 1}]`, `templates.worker.candidates[0].max: Invalid value: 1: unknown key, allowed are instance_type, market, max_instances, name`},
		{"candidate without a name", `{"role": "worker"}`, `{"role": "worker"}, "candidates": [{}]`, `templates.worker.candidates[0].name: Required value`},
		{"candidate of another arch", `{"role": "worker"}`, `{"role": "worker"}, "candidates": [{"name": "a", "instance_type": "tiny"}]`, `templates.worker.candidates[0].instance_type: Invalid value: "tiny": no instance type of architecture "amd64", known are "c7i.2xlarge", "m7i.large"`},
		{"candidate with a market that the provider lacks", `{"role": "worker"}`, `{"role": "worker"}, "candidates": [{"name": "a", "market": "Spot"}]`, `templates.worker.candidates[0].market: Invalid value: "Spot": the provider has no markets: a market must not be named`},
		{"candidates beside an instance type", `"size": 3`, `"size": 3, "candidates": [{"name": "a"}]`, `groups.default.arm.instance_type: Forbidden: cannot be set together with candidates`},
		{"return without candidates", `"size": 3`, `"size": 3, "return_after": "1h"`, `groups.default.arm.return_after: Forbidden: needs candidates`},
		{"return that is too early", `{"role": "worker"}`, `{"role": "worker"}, "candidates": [{"name": "a"}], "return_after": "9m"`, `templates.worker.return_after: Invalid value: 540: must be at least 600 seconds`},
		{"template for nobody", `{"role": "worker"}`, `{"role": "worker"}, "tenants": []`, `templates.worker.tenants: Required value: must name a tenant`},
		{"template of a tenant that cannot be", `{"role": "worker"}`, `{"role": "worker"}, "tenants": ["default", "A"]`, `templates.worker.tenants[1]: Invalid value: "A"`},
		{"template of other tenants", `{"role": "worker"}`, `{"role": "worker"}, "tenants": ["other"]`, `groups.default.main.template: Invalid value: "worker": is not for tenant "default", only for other (tenants of the template)`},
		{"negative number of on-demand instances", `"id": "us-west-2a"`, `"id": "us-west-2a", "max_on_demand": -1`, `shard.max_on_demand: Invalid value: -1: must be from 0 to 10000`},
		{"too many on-demand instances", `"id": "us-west-2a"`, `"id": "us-west-2a", "max_on_demand": 10001`, `shard.max_on_demand: Invalid value: 10001: must be from 0 to 10000`},
		{"negative number of on-demand instances in an hour", `"id": "us-west-2a"`, `"id": "us-west-2a", "max_on_demand_per_hour": -1`, `shard.max_on_demand_per_hour: Invalid value: -1: must be from 0 to 10000`},
		{"no calls", `"max_calls_per_second": 2000`, `"max_calls_per_second": 0`, `shard.max_calls_per_second: Invalid value: 0: must be from 1 to 1000000`},
		{"deleted instances are forgotten within the hour", `"id": "us-west-2a"`, `"id": "us-west-2a", "max_on_demand_per_hour": 10`, `shard.garbage_collection.deleted_record_retention: Invalid value: "31m0s": must be at least 1h0m0s with max_on_demand_per_hour`},
		{"fraction", `"size": 3`, `"size": 3.5`, `groups.default.arm.size: Invalid value: 3.5: must be an integer of at most 32 bits`},
		{"number too large", `"size": 3`, `"size": 2147483648`, `groups.default.arm.size: Invalid value: 2147483648: must be an integer of at most 32 bits`},
		{"var that is no text", `{"a": "b"}`, `{"a": true}`, `groups.default.arm.vars.a: Invalid value: true: must be a string`},
		{"shard id that names the lock of all shards", `"id": "us-west-2a"`, `"id": "cluster"`, `shard.id: Invalid value: "cluster": is the name of the lock of all shards`},
		{"shard id", `"id": "us-west-2a"`, `"id": "US"`, `shard.id: Invalid value: "US": "US" must consist of`},
		{"provider", `"provider": "fake"`, `"provider": "aws"`, `shard.infra.provider: Unsupported value: "aws": supported values: "fake"`},
		{"option of the provider", `"/etc/endpoint"`, `""`, `shard.infra.options.endpoint: Required value: must not be empty`},
		{"unknown option of the provider", `"endpoint": "/etc/endpoint"`, `"endpoint": "/etc/endpoint", "x": 1`, `shard.infra.options.x: Invalid value: 1: unknown key, allowed are endpoint`},
		{"region", `"region": "us-west-2"`, `"region": ""`, `shard.infra.region: Required value: must not be empty`},
		{"zone is a label value", `"zone": "us-west-2a"`, `"zone": "a b"`, `shard.infra.zone: Invalid value: "a b": a valid label must be`},

		{"secrets elsewhere", `"object-storage"`, `"vault"`, `cluster.secrets.provider: Unsupported value: supported values: "object-storage", "aws-secrets-manager", "aws-parameter-store", "google-secret-manager"`},
		{"no encryption key", `"encryption_key": {"env": "NSTANCE_KEY"},`, ``, `cluster.secrets.encryption_key: Required value: must have exactly one of env, file, aws_secrets_manager, aws_parameter_store, aws_kms, google_secret_manager`},
		{"encryption key without a name", `{"env": "NSTANCE_KEY"}`, `{"env": ""}`, `cluster.secrets.encryption_key: Required value: must have exactly one of env, file, aws_secrets_manager, aws_parameter_store, aws_kms, google_secret_manager`},
		{"encryption key in two places", `{"env": "NSTANCE_KEY"}`, `{"env": "NSTANCE_KEY", "file": "/k"}`, `cluster.secrets.encryption_key: Invalid value: ["env","file"]: must have exactly one of env, file, aws_secrets_manager, aws_parameter_store, aws_kms, google_secret_manager`},
		{"encryption key of another type", `{"env": "NSTANCE_KEY"}`, `"NSTANCE_KEY"`, `cluster.secrets.encryption_key: Invalid value: must be an object`},
		{"name of an encryption key that is no text", `{"env": "NSTANCE_KEY"}`, `{"env": 7}`, `cluster.secrets.encryption_key.env: Invalid value: must be a string`},
		{"encryption key in a folder that is not named", `"/etc/nstance/old.key"`, `"old.key"`, `cluster.secrets.old_encryption_keys[0].file: Invalid value: must be an absolute path`},
		{"old encryption keys that are no list", `[{"file": "/etc/nstance/old.key"}, {"env": "NSTANCE_OLDER_KEY"}]`, `{}`, `cluster.secrets.old_encryption_keys: Invalid value: must be a list of objects`},
		{"interval that is too long for the timeout", `"timeout": "6s"`, `"timeout": "5.9s"`, `shard.leader_election.interval: Invalid value: "2s": must be at most a third of timeout 5.9s`},
		{"interval of zero", `"interval": "1s"`, `"interval": "0s"`, `cluster.leader_election.interval: Invalid value: "0s": must be greater than zero`},
		{"timeout of zero", `"timeout": "4s"`, `"timeout": "0s"`, `cluster.leader_election.timeout: Invalid value: "0s": must be greater than zero`},
		{"ages in the wrong order", `"21d"`, `"720h"`, `shard.expiry.eligible_age: Invalid value: "720h0m0s": must be less than forced_age 720h0m0s`},
		{"negative age", `"7d"`, `"-7d"`, `shard.expiry.ondemand_age: Invalid value: "-7d": must be a duration that is not negative`},
		{"registration timeout that ends before the first comparison", `"6m"`, `"3m"`, `shard.garbage_collection.registration_timeout: Invalid value: "3m0s": must exceed interval 3m0s`},
		{"calls without a bound", `"29s"`, `"0s"`, `shard.request_timeout: Invalid value: "0s": must be greater than zero`},
		{"negative drain timeout", `"90s"`, `"-90s"`, `groups.default.arm.drain_timeout: Invalid value: "-90s": must be a duration that is not negative`},
		{"certificates that end at once", `"ttl": 48`, `"ttl": 0`, `certificates.operator.ttl: Invalid value: 0: must be between 1 and 87600 hours, or a duration of at least "10s"`},
		{"certificates that outlive their authority", `"ttl": 48`, `"ttl": 87601`, `certificates.operator.ttl: Invalid value: 87601: must be between 1 and 87600 hours, or a duration of at least "10s"`},
		{"certificates that cannot be renewed in time", `"ttl": 48`, `"ttl": "9s"`, `certificates.operator.ttl: Invalid value: "9s": must be between 1 and 87600 hours, or a duration of at least "10s"`},
		{"certificates for years", `"ttl": 48`, `"ttl": "87601h"`, `certificates.operator.ttl: Invalid value: "87601h0m0s": must be between`},
		{"certificates for some time", `"ttl": 48`, `"ttl": "soon"`, `certificates.operator.ttl: Invalid value: "soon": must be a duration`},
		{"certificates whose time overflows to half an hour", `"ttl": 48`, `"ttl": 5124096`, `certificates.operator.ttl: Invalid value: 5124096: must be between 1 and 87600 hours, or a duration of at least "10s"`},
		{"time of certificates that is no number", `"ttl": 48`, `"ttl": true`, `certificates.operator.ttl: Invalid value: true: must be an integer of at most 32 bits`},

		{"health address", `"0.0.0.0:8990"`, `"8990"`, `shard.bind.health_addr: Invalid value: "8990": must be host:port`},
		{"port that is no number", `"0.0.0.0:8990"`, `"0.0.0.0:http"`, `shard.bind.health_addr: Invalid value: "0.0.0.0:http": must be host:port`},
		{"port out of range", `"0.0.0.0:8990"`, `"0.0.0.0:65536"`, `shard.bind.health_addr: Invalid value: "0.0.0.0:65536": must be host:port`},
		{"agent address", `"[::]:8994"`, `"8994"`, `shard.bind.agent_addr: Invalid value: "8994": must be host:port`},
		{"agent address of another", `"[::]:8994"`, `"[::]:8993"`, `shard.bind.agent_addr: Invalid value: "[::]:8993": must differ from shard.bind.operator_addr`},
		{"agent ttl", `"36h"`, `"1s"`, `certificates.agent.ttl: Invalid value: "1s": must be between 1 and`},
		{"interval of reports", `"45s"`, `"0s"`, `shard.health_check_interval: Invalid value: "0s": must be greater than zero`},
		{"operator address", `"[::]:8993"`, `"[::]:"`, `shard.bind.operator_addr: Invalid value: "[::]:": must be host:port`},
		{"missing address", `"election_addr": "0.0.0.0:8991",`, ``, `shard.bind.election_addr: Invalid value: "": must be host:port`},
		{"advertised address", `"shard-a.example:443"`, `"shard-a.example"`, `shard.advertise.registration_addr: Invalid value: "shard-a.example": must be host:port`},
		{"advertised port 0", `"shard-a.example:443"`, `"shard-a.example:0"`, `shard.advertise.registration_addr: Invalid value: "shard-a.example:0": must not have port 0`},
		{"equal addresses", `"0.0.0.0:8992"`, `"0.0.0.0:8991"`, `shard.bind.registration_addr: Invalid value: "0.0.0.0:8991": must differ from shard.bind.election_addr`},
		{"address that is one of all those of another", `"[::]:8993"`, `"10.0.0.1:8990"`, `shard.bind.operator_addr: Invalid value: "10.0.0.1:8990": must differ from shard.bind.health_addr`},
		{"pool id", `"extra": ["subnet-c"]`, `"extra": ["subnet-c"], "Big": ["subnet-d"]`, `shard.subnet_pools.Big: Invalid value: "Big": "Big" must consist of`},
		{"pool without subnets", `"extra": ["subnet-c"]`, `"extra": []`, `shard.subnet_pools.extra: Required value: needs at least one subnet`},
		{"subnet without a name", `"extra": ["subnet-c"]`, `"extra": [""]`, `shard.subnet_pools.extra[0]: Required value: must not be empty`},
		{"subnet that is no label", `"extra": ["subnet-c"]`, `"extra": ["subnet-c", "10.0.0.0/24"]`, `shard.subnet_pools.extra[1]: Invalid value: "10.0.0.0/24": a valid label must be`},
		{"subnet in two pools", `"extra": ["subnet-c"]`, `"extra": ["subnet-b"]`, `shard.subnet_pools.extra[0]: Invalid value: "subnet-b": is in pool "default" already`},
		{"unknown dynamic pool", `["default"]`, `["default", "none"]`, `shard.dynamic_subnet_pools[1]: Invalid value: "none": unknown subnet pool, known are "default", "extra"`},
		{"template name", `"bare": {"kind"`, `"b_c": {"kind": "abc", "arch": "arm64"}, "bare": {"kind"`, `templates.b_c: Invalid value: "b_c": "b_c" must consist of`},
		{"kind", `"kind": "knd"`, `"kind": "kn1"`, `templates.worker.kind: Invalid value: "kn1": must be three lower case letters`},
		{"arch of an unused template", `"kind": "bar", "arch": "arm64"`, `"kind": "bar", "arch": "arm"`, `templates.bare.arch: Unsupported value: "arm": supported values: "amd64", "arm64"`},
		{"size of a template", `"size": 0`, `"size": -1`, `templates.bare.size: Invalid value: -1: must not be negative`},
		{"instance type of another arch", `"m7i.large"`, `"tiny"`, `templates.worker.instance_type: Invalid value: "tiny": no instance type of architecture "amd64", known are "c7i.2xlarge"`},
		{"pool of a template", `"subnet_pool": "default"`, `"subnet_pool": "none"`, `templates.worker.subnet_pool: Invalid value: "none": unknown subnet pool, known are "default", "extra"`},
		{"tenant", `"empty": {}`, `"a--b": {}`, `groups.a--b: Invalid value: "a--b": "a--b" must not contain consecutive hyphens`},
		{"drain timeout of another type", `"90s"`, `90`, `groups.default.arm.drain_timeout: Invalid value: 90: must be a string`},

		{"userdata that is no template", `"#!/bin/sh\necho {{.Nonce}}\n"`, `"a\nsecret {{.Nonce\n"`, `defaults.userdata: Invalid value: must be a Go template: mistake in line 3`},
		{"userdata of another type", `"#!/bin/sh\necho {{.Nonce}}\n"`, `["a"]`, `defaults.userdata: Invalid value: must be a string or an object`},
		{"userdata with a function that is none", `"#!/bin/sh\necho {{.Nonce}}\n"`, `"{{secret}}"`, `defaults.userdata: Invalid value: must be a Go template: mistake in line 1`},
		{"userdata that is a list of lines", `"#!/bin/sh\necho {{.Nonce}}\n"`, `{"inline": ["secret"]}`, `defaults.userdata.inline: Invalid value: must be a string`},
		{"userdata that is no base64", `"#!/bin/sh\necho {{.Nonce}}\n"`, `{"inline": "secret!", "encoding": "base64"}`, `defaults.userdata: Invalid value: must be base64: illegal base64 data at input byte 6`},
		{"userdata of a template that is no gzip", `"url": "https://example.com/userdata"`, `"inline": "c2VjcmV0c2VjcmV0"`, `templates.worker.userdata: Invalid value: must be gzip: gzip: invalid header`},
		{"userdata in base64 that is no template", `"#!/bin/sh\necho {{.Nonce}}\n"`, `{"inline": "YQp7e3NlY3JldH19", "encoding": "base64"}`, `defaults.userdata: Invalid value: must be a Go template: mistake in line 2`},
		{"gzip in a string", `"#!/bin/sh\necho {{.Nonce}}\n"`, `{"inline": "secret", "encoding": "gzip"}`, `defaults.userdata.encoding: Invalid value: "gzip": must be that of a url only: a string cannot contain gzip, use base64+gzip`},
		{"userdata from nowhere", `"url": "https://example.com/userdata"`, `"url": ""`, `templates.worker.userdata: Required value: must have exactly one of inline, url`},
		{"userdata from two places", `"url": "https://example.com/userdata"`, `"url": "https://example.com/userdata", "inline": "x"`, `templates.worker.userdata: Invalid value: ["inline","url"]: must have exactly one of inline, url`},
		{"userdata from a file", `"https://example.com/userdata"`, `"file:///etc/secret"`, `templates.worker.userdata.url: Invalid value: must be a URL that begins with http:// or https://`},
		{"userdata from another protocol", `"https://example.com/userdata"`, `"ftp://example.com/userdata"`, `templates.worker.userdata.url: Invalid value: must be a URL that begins with http:// or https://`},
		{"userdata from no host", `"https://example.com/userdata"`, `"https:///userdata"`, `templates.worker.userdata.url: Invalid value: must be a URL that begins with http:// or https://`},
		{"encoding", `"base64+gzip"`, `"zip"`, `templates.worker.userdata.encoding: Unsupported value: "zip": supported values: "plain", "base64", "gzip", "base64+gzip"`},
		{"unknown key of userdata", `"encoding": "base64+gzip"`, `"source": "url"`, `templates.worker.userdata.source: Invalid value: unknown key, allowed are encoding, inline, sha256, url`},
		{"hash in upper case", `"encoding": "base64+gzip"`, `"sha256": "` + strings.Repeat("A", 64) + `"`, `templates.worker.userdata.sha256: Invalid value: "` + strings.Repeat("A", 64) + `": must be 64 lower case hexadecimal digits`},
		{"hash that is too short", `"encoding": "base64+gzip"`, `"sha256": "abc"`, `templates.worker.userdata.sha256: Invalid value: "abc": must be 64 lower case hexadecimal digits`},
		{"hash of a string", `"#!/bin/sh\necho {{.Nonce}}\n"`, `{"inline": "x", "sha256": "` + strings.Repeat("a", 64) + `"}`, `defaults.userdata.sha256: Forbidden: only the content of a url has a hash`},
		{"argument that is no template", `"any text at all"`, `"{{.Vars.x"`, `templates.worker.args.annotations.Example.com/Note: Invalid value: "{{.Vars.x": must be a Go template: line:1: unclosed action`},
		{"default argument that is no template", `"{{.Vars.tier}}"`, `"{{end}}"`, `defaults.args.labels.tier: Invalid value: "{{end}}": must be a Go template: line:1: unexpected {{end}}`},
		{"argument that the provider rejects", `"args": {"annotations": {"group": "arm"}}`, `"args": {"labels": "arm"}`, `groups.default.arm.args.labels: Invalid value: "arm": must be an object`},
		{"number that is too large for any argument", `"replicas": 3`, `"replicas": 1e999`, `defaults.files.app.json.json.replicas: Invalid value: 1e999: must be a number of at most 64 bits`},
		{"kind of a file", `"kind": "env"`, `"kind": "dir"`, `templates.worker.files.app.env.kind: Unsupported value: "dir": supported values: "certificate", "secret", "storage", "env", "json", "string"`},
		{"name of a file with its folder", `"app.env":`, `"../app.env":`, `templates.worker.files.../app.env: Invalid value: "../app.env": must be the name of a file, without its folder`},

		{"group id", `"main":`, `"Main":`, `groups.default.Main: Invalid value: "Main": "Main" must consist of`},
		{"group without a template", `{"template": "worker"}`, `{}`, `groups.default.main.template: Required value: must name a template: "bare", "worker"`},
		{"unknown template", `{"template": "worker"}`, `{"template": "knz"}`, `groups.default.main.template: Invalid value: "knz": unknown template, known are "bare", "worker"`},
		{"size of a group", `"size": 3`, `"size": -3`, `groups.default.arm.size: Invalid value: -3: must not be negative`},
		{"instance type of a group", `"instance_type": "tiny"`, `"instance_type": "huge"`, `groups.default.arm.instance_type: Invalid value: "huge": no instance type of architecture "arm64"`},
		{"no instance type at all", `"instance_type": "tiny", `, ``, `groups.default.arm.instance_type: Required value: template "bare" has none`},
		{"pool of a group", `"subnet_pool": "extra"`, `"subnet_pool": "none"`, `groups.default.arm.subnet_pool: Invalid value: "none": unknown subnet pool`},
		{"no pool at all", `"subnet_pool": "extra", `, ``, `groups.default.arm.subnet_pool: Required value: template "bare" has none`},
		{"no pools at all", `"subnet_pools": {"default": ["subnet-a", "subnet-b"], "extra": ["subnet-c"]}`, `"subnet_pools": {}`, "shard.subnet_pools: Required value: needs at least one subnet pool\n" +
			"shard.dynamic_subnet_pools[0]: Invalid value: \"default\": unknown subnet pool, known are none\n"},
		{"long value", `"id": "prod"`, `"id": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]`,
			`cluster.id: Invalid value: "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,3…": must be a string`},
		{"no JSON", `"id": "prod",`, `"id": "prod"`, `hujson: line`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if strings.Count(example, tc.old) == 0 {
				t.Fatalf("the example has no %s", tc.old)
			}
			_, err := Parse([]byte(strings.Replace(example, tc.old, tc.new, 1)), providers)
			if _, invalid := errors.AsType[*InvalidError](err); !invalid {
				t.Fatalf("got %T %v, want an InvalidError", err, err)
			}
			if strings.Contains(err.Error(), "secret") && strings.Contains(err.Error(), "userdata") {
				t.Errorf("the error has userdata in it: %s", err)
			}
			// If want has one line, it is the only error.
			if !strings.HasPrefix(err.Error(), tc.want) || !strings.Contains(tc.want, "\n") && strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
		})
	}
}

// TestErrorsShowNoKey: a user may write a key instead of its location, and the error
// is logged.
func TestErrorsShowNoKey(t *testing.T) {
	const key = "00112233445566778899aabbccddeeff"
	const secrets = `"secrets": {`
	for _, mistake := range []string{
		`"secrets": "` + key + `", "x": {`,
		secrets + `"provider": "` + key + `", `,
		secrets + `"key": "` + key + `", `,
		secrets + `"encryption_key": "` + key + `", `,
		secrets + `"encryption_key": ["` + key + `"], `,
		secrets + `"encryption_key": {"value": "` + key + `"}, `,
		secrets + `"encryption_key": {"env": ["` + key + `"]}, `,
		secrets + `"encryption_key": {"aws_kms": "` + key + `"}, `,
		secrets + `"encryption_key": {"aws_kms": {"ciphertext": ["` + key + `"]}}, `,
		secrets + `"encryption_key": {"aws_kms": {"ciphertext": "` + key + `", "key_id": "` + key + `!"}}, `,
		secrets + `"encryption_key": {"aws_kms": {"ciphertext": "` + key + `", "key_id": "a", "region": "` + key + `"}}, `,
		secrets + `"encryption_key": {"aws_kms": {"plaintext": "` + key + `"}}, `,
		secrets + `"old_encryption_keys": "` + key + `", `,
		secrets + `"old_encryption_keys": ["` + key + `"], `,
		secrets + `"old_encryption_keys": [{"value": "` + key + `"}], `,
	} {
		_, err := Parse([]byte(strings.Replace(example, secrets, mistake, 1)), providers)
		if err == nil || !strings.Contains(err.Error(), "cluster.secrets") || strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v, want an error without the key", mistake, err)
		}
	}
}

func TestParseReportsAllErrorsTogether(t *testing.T) {
	_, err := Parse([]byte(`{
		"cluster": {"id": 1, "x": 2},
		"defaults": {"args": {"x": 1}},
		"templates": {"a": {"kind": "A", "arch": "b"}},
	}`), providers)
	if err == nil {
		t.Fatal("was accepted")
	}
	var fields []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		name, _, _ := strings.Cut(line, ": ")
		fields = append(fields, name)
	}
	want := []string{
		"cluster.id", "cluster.secrets.encryption_key", "cluster.x",
		"shard.id", "shard.infra.region", "shard.infra.zone", "shard.infra.provider",
		"shard.bind.health_addr", "shard.bind.election_addr", "shard.bind.registration_addr", "shard.bind.operator_addr",
		"shard.subnet_pools",
		"templates.a.kind", "templates.a.arch",
	}
	if !slices.Equal(fields, want) {
		t.Errorf("got errors for  %q\nwant errors for %q\n%v", fields, want, err)
	}
}

// TestClusterAndTenantMakeALabelValue: each alone may have the maximal length.
func TestClusterAndTenantMakeALabelValue(t *testing.T) {
	const longest = "a2345678901234567890123456789012"
	with := func(cluster, tenant string) error {
		text := strings.NewReplacer(`"id": "prod"`, `"id": "`+cluster+`"`, `"empty": {}`, `"`+tenant+`": {}`).Replace(example)
		_, err := Parse([]byte(text), providers)
		return err
	}
	if err := with(longest, longest[:29]); err != nil {
		t.Errorf("63 characters are refused: %v", err)
	}
	err := with(longest, longest[:30])
	want := `groups.` + longest[:30] + `: Invalid value: "` + longest[:30] + `": makes the name "` + longest + `--` + longest[:30] + `", which has 64 characters, at most 63 are allowed`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestCheckReplacement(t *testing.T) {
	tests := []struct{ name, old, new, want string }{
		{"nothing", ``, ``, ``},
		{"cluster", `"id": "prod"`, `"id": "other"`, `cluster.id: Invalid value: "other": needs a restart of the server, which runs with "prod"`},
		{"shard", `"id": "us-west-2a"`, `"id": "b"`, `shard.id: Invalid value: "b"`},
		{"region", `"region": "us-west-2"`, `"region": "x"`, `shard.infra.region: Invalid value: "x"`},
		{"zone", `"zone": "us-west-2a"`, `"zone": "x"`, `shard.infra.zone: Invalid value: "x"`},
		{"election of the cluster", `"enabled": false`, `"enabled": true`, `cluster.leader_election.enabled: Invalid value: "true": needs a restart of the server, which runs with "false"`},
		{"election of the shard", `"interval": "2s"`, `"interval": "1s"`, `shard.leader_election.interval: Invalid value: "1s": needs a restart of the server, which runs with "2s"`},
		{"timeout of an election", `"timeout": "6s"`, `"timeout": "7s"`, `shard.leader_election.timeout: Invalid value: "7s"`},
		{"encryption key", `"NSTANCE_KEY"`, `"OTHER_KEY"`, `cluster.secrets.encryption_key: Invalid value: "env OTHER_KEY": needs a restart of the server, which runs with "env NSTANCE_KEY"`},
		{"encryption key in a file of the same name", `{"env": "NSTANCE_OLDER_KEY"}`, `{"file": "/NSTANCE_OLDER_KEY"}`, `cluster.secrets.old_encryption_keys: Invalid value: "[file /etc/nstance/old.key file /NSTANCE_OLDER_KEY]"`},
		{"option of the provider", `"/etc/endpoint"`, `"/x"`, `shard.infra.options.endpoint: Invalid value: "/x": needs a restart of the server, which runs with "/etc/endpoint"`},
		{"health address", `"0.0.0.0:8990"`, `":1"`, `shard.bind.health_addr: Invalid value: ":1"`},
		{"election address", `"0.0.0.0:8991"`, `":1"`, `shard.bind.election_addr: Invalid value: ":1"`},
		{"registration address", `"0.0.0.0:8992"`, `":1"`, `shard.bind.registration_addr: Invalid value: ":1"`},
		{"operator address", `"[::]:8993"`, `":1"`, `shard.bind.operator_addr: Invalid value: ":1"`},
		{"advertised address", `"shard-a.example:443"`, `""`, `shard.advertise.registration_addr: Invalid value: "": needs a restart of the server, which runs with "shard-a.example:443"`},
		{"expiry", `"21d"`, `"20d"`, ``},
		{"drain timeout", `"4m"`, `"0s"`, ``},
		{"rate limit", `"create_rate_limit": "1s",`, ``, ``},
		{"garbage collection", `"3m"`, `"2m"`, ``},
		{"bounds of calls", `"29s"`, `"28s"`, ``},
		{"certificates of operators", `48`, `24`, ``},
		{"defaults", `{"tier": "none"}`, `{}`, ``},
		{"drain timeout of a group", `"90s"`, `"0s"`, ``},
		{"groups", `"size": 3`, `"size": 4`, ``},
		{"templates", `{"role": "worker"}`, `{}`, ``},
		{"subnet pools", `"subnet-b"`, `"subnet-d"`, ``},
		{"pools of dynamic groups", `["default"]`, `[]`, ``},
	}
	before := parsed(t, example)
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(example, tc.old) {
				t.Fatalf("the example has no %s", tc.old)
			}
			next := parsed(t, strings.Replace(example, tc.old, tc.new, 1))
			errs := before.CheckReplacement(next)
			if tc.want == "" {
				if len(errs) != 0 {
					t.Errorf("got %v, want no error", errs)
				}
				return
			}
			if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), tc.want) {
				t.Errorf("got %v, want %s", errs, tc.want)
			}
		})
	}
}
