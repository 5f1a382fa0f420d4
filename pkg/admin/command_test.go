// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"strings"
	"testing"
)

// TestWrongFlags expects that nothing is called or read, and that the error has each
// mistake with the name of its flag, its value and the allowed values.
func TestWrongFlags(t *testing.T) {
	list := func(flags ...string) []string { return append([]string{"group", "list"}, flags...) }
	scale := func(args ...string) []string {
		return append([]string{"group", "scale", "--identity-dir", "x", "--servers", "a=h:1", "--shard", "a"}, args...)
	}
	nonce := func(flags ...string) []string {
		return append([]string{"cluster", "nonce", "--storage-bucket", "b"}, flags...)
	}
	register := func(flags ...string) []string {
		return append([]string{"cluster", "register-operator", "--storage-bucket", "b"}, flags...)
	}
	revoke := func(flags ...string) []string {
		return append([]string{"operator", "revoke", "--storage-bucket", "b"}, flags...)
	}
	adopt := func(flags ...string) []string {
		return append([]string{"tenant", "adopt", "--storage-bucket", "b"}, flags...)
	}
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want []string
	}{
		{"all at once", nil, list("--servers", "x", "--timeout", "0s"), []string{"--servers:", "--shard:", "--identity-dir:", "--timeout:"}},
		{"no servers", nil, list("--shard", "a"), []string{"--servers: must be shard=host:port, several separated by commas"}},
		{"server without shard", nil, list("--servers", "h:1"), []string{`--servers: "h:1" must be shard=host:port`}},
		{"server of an ill-formed shard", nil, list("--servers", "A=h:1"), []string{`--servers: "A=h:1": shard: "A" must consist of`}},
		{"server without port", nil, list("--servers", "a=h"), []string{`"a=h": address "h" must be host:port`}},
		{"server without host", nil, list("--servers", "a=:1"), []string{`address ":1" must be host:port`}},
		{"server with port 0", nil, list("--servers", "a=h:0"), []string{`address "h:0" must have a port from 1 to 65535`}},
		{"server with a named port", nil, list("--servers", "a=h:http"), []string{`address "h:http" must have a port from 1 to 65535`}},
		{"a shard twice", nil, list("--servers", "a=h:1,a=[::1]:2"), []string{`shard "a" is given twice`}},
		{"neither shard nor all", nil, list("--servers", "a=h:1"), []string{"--shard: exactly one of --shard and --all-shards must be given"}},
		{"both shard and all", nil, list("--servers", "a=h:1", "--shard", "a", "--all-shards"), []string{"--all-shards: must not be given together with --shard a"}},
		{"unknown shard", nil, list("--servers", "a=h:1,b=h:2", "--shard", "c"), []string{`--shard: "c" is not among --servers, which has "a", "b"`}},
		{"unknown shard of the environment", map[string]string{"NSTANCE_ADMIN_SHARD": "c", "NSTANCE_ADMIN_SERVERS": "a=h:1"}, list(), []string{`--shard: "c" is not among --servers, which has "a"`}},
		{"missing identity", nil, list("--servers", "a=h:1", "--shard", "a", "--identity-dir", "/nothing"), []string{"--identity-dir:", "/nothing/ca.crt"}},
		{"timeout that is none", nil, list("--timeout", "soon"), []string{`"soon"`, "--timeout"}},
		{"unknown flag", nil, list("--shards", "a"), []string{"--shards"}},
		{"too many words", nil, list("a"), []string{`"a"`}},
		{"no size", nil, scale("g"), []string{"accepts 2 arg(s), received 1"}},
		{"ill-formed group", nil, scale("a_b", "1"), []string{`GROUP: "a_b" must consist of`}},
		{"size that is no number", nil, scale("g", "many"), []string{`SIZE: "many" must be a whole number from 0 to 10000`}},
		{"negative size", nil, scale("g", "--", "-1"), []string{`SIZE: "-1" must be a whole number`}},
		{"size that is too large", nil, scale("g", "2147483648"), []string{`SIZE: "2147483648" must be a whole number from 0 to 10000`}},
		{"no bucket", nil, []string{"cluster", "nonce"}, []string{"--storage-bucket: must be the name of the bucket, or the folder of storage file"}},
		{"unknown storage", nil, nonce("--storage", "azure"), []string{`--storage: "azure" is unknown, known are "file", "gcs" and "s3"`}},
		{"ill-formed prefix", nil, nonce("--storage-prefix", "/a"), []string{"--storage-prefix:", `"/a"`}},
		{"unknown key provider", nil, nonce("--key-provider", "vault"), []string{`--key-provider: "vault" is unknown, known are ["env" "file" "aws-secrets-manager"`}},
		{"key file without path", nil, nonce("--key-provider", "file"), []string{`--key: must be the path of the file with the key when --key-provider is "file"`}},
		{"key in a service without name", nil, nonce("--key-provider", "aws-parameter-store"), []string{`--key: must be the name of the key in the service when --key-provider is "aws-parameter-store"`}},
		{"unknown provider of secrets", nil, nonce("--secrets-provider", "vault"), []string{`--secrets-provider: "vault" is unknown, known are ["object-storage"`}},
		{"key of a service", nil, nonce("--secrets-provider", "aws-secrets-manager", "--key", "X"), []string{"--key: is for --secrets-provider object-storage only"}},
		{"prefix of another provider", nil, nonce("--secrets-provider", "aws-parameter-store", "--secrets-prefix", "a/"), []string{`--secrets-prefix: "a/" must begin and end with a slash`}},
		{"no project", nil, nonce("--secrets-provider", "google-secret-manager"), []string{`--secrets-project: "" must be the id of a project`}},
		{"project of another provider", nil, nonce("--secrets-project", "a"), []string{"--secrets-project: is for --secrets-provider google-secret-manager only"}},
		{"ill-formed cluster", nil, nonce("--cluster-id", "a--b"), []string{`--cluster-id: "a--b" must not contain consecutive hyphens`}},
		{"no tenant", nil, nonce("--tenant", ""), []string{"--tenant: must not be empty"}},
		{"no time", nil, nonce("--expiry", "0s"), []string{"--expiry: 0s must be greater than zero"}},
		{"too much time", nil, nonce("--expiry", "168h1s"), []string{"--expiry: 168h0m1s must be at most 168h0m0s"}},
		{"no output", nil, nonce("--output", ""), []string{`--output: must be a path, or "-"`}},
		{"nowhere to register", nil, register("--identity-dir", "x"), []string{`--registration: address "" must be host:port`}},
		{"no place for the identity", nil, register("--registration", "h:1"), []string{"--identity-dir: must be the folder for the identity"}},
		{"no time to register", nil, register("--timeout", "-1s"), []string{"--timeout: -1s must be greater than zero"}},
		{"no certificate to revoke", nil, revoke(), []string{"--all: must be set, or --serial, but not both"}},
		{"all certificates and one", nil, revoke("--all", "--serial", "a"), []string{"--all: must be set, or --serial, but not both"}},
		{"ill-formed serial number", nil, revoke("--serial", "x1"), []string{`--serial: "x1" is not a serial number in hexadecimal digits`}},
		{"ill-formed tenant to revoke", nil, revoke("--all", "--tenant", "../a"), []string{`--tenant: "../a" must consist of`}},
		{"no Kubernetes cluster", nil, adopt(), []string{"--kubernetes-cluster: must be the UID of the namespace kube-system of the Kubernetes cluster, unless --release is set"}},
		{"a Kubernetes cluster and a release", nil, adopt("--release", "--kubernetes-cluster", "x"), []string{"--kubernetes-cluster: must be"}},
		{"ill-formed tenant to adopt", nil, adopt("--release", "--tenant", "A"), []string{`--tenant: "A" must consist of`}},
		{"no bucket with operators", nil, []string{"operator", "list"}, []string{"--storage-bucket: must be the name"}},
		{"unknown command", nil, []string{"cluster", "nonces"}, []string{`unknown command "nonces" of "nstance-admin cluster", known are ca, init, nonce, register-operator`}},
		{"unknown family", nil, []string{"clusters"}, []string{`unknown command "clusters"`, "known are agent, ca, cluster, config, group, nonce-issuer, operator, provider, secret, shard, tenant"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range []string{"NSTANCE_ADMIN_SERVERS", "NSTANCE_ADMIN_SHARD", "NSTANCE_ADMIN_IDENTITY_DIR"} {
				t.Setenv(name, tc.env[name])
			}
			printed, err := run(t, tc.args...)
			wantError(t, err, tc.want...)
			if printed != "" {
				t.Errorf("printed %q", printed)
			}
		})
	}
}

// TestAllShardsInsteadOfTheShardOfTheEnvironment expects that a flag overrides the
// environment variable.
func TestAllShardsInsteadOfTheShardOfTheEnvironment(t *testing.T) {
	t.Setenv("NSTANCE_ADMIN_SHARD", "a")
	_, err := run(t, "group", "list", "--all-shards", "--servers", "a=h:1", "--identity-dir", "/nothing")
	// The command failed to read the identity.
	wantError(t, err, "/nothing/ca.crt")
	if strings.Contains(err.Error(), "--shard") {
		t.Errorf("got %v", err)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"cluster"}, {"config"}, {"group"}, {"operator"}, {"tenant"}} {
		if printed := mustRun(t, args...); !strings.Contains(printed, "Available Commands") {
			t.Errorf("nstance-admin %v prints %q", args, printed)
		}
	}
}
