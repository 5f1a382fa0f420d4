// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin_test

import (
	"context"
	"crypto/tls"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// storageFlags returns the flags for the storage of a server.
func storageFlags(s *servertest.Server) []string {
	return []string{"--storage", "file", "--storage-bucket", s.Bucket()}
}

// rows returns the cells of the printed table without the header.
func rows(printed string) [][]string {
	var cells [][]string
	for line := range strings.Lines(printed) {
		cells = append(cells, strings.Fields(line))
	}
	return cells[1:]
}

// call calls a server with an identity, from a Kubernetes cluster unless that is empty.
func call(t *testing.T, s *servertest.Server, folder, cluster string) error {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(folder, "identity.crt"), filepath.Join(folder, "identity.key"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if cluster != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, identifier.KubernetesClusterKey, cluster)
	}
	_, err = nstancev1.NewOperatorServiceClient(s.Connect(certificate)).ListGroups(ctx, &emptypb.Empty{})
	return err
}

func TestRevokeOperator(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	list := append([]string{"operator", "list"}, storageFlags(s)...)
	assert.Empty(t, mustRun(t, list...), "nobody is registered")

	folder := register(t, s)
	listed := rows(mustRun(t, list...))
	require.Len(t, listed, 1)
	serial := listed[0][2]
	assert.Equal(t, []string{"default", servertest.ClusterID, serial, "valid"}, listed[0][:4])
	require.NoError(t, call(t, s, folder, "cluster-1"))
	assert.Equal(t, "cluster-1", rows(mustRun(t, list...))[0][6])

	revoke := append([]string{"operator", "revoke", "--tenant", "default"}, storageFlags(s)...)
	assert.Contains(t, mustRun(t, append(revoke, "--serial", "0"+strings.ToUpper(serial))...), "Revoked certificate "+serial+" of the operator of tenant default.")
	assert.Equal(t, "revoked", rows(mustRun(t, list...))[0][3])

	folder = register(t, s)
	require.NoError(t, call(t, s, folder, ""))
	assert.Equal(t, "valid", rows(mustRun(t, list...))[0][3])
	assert.Contains(t, mustRun(t, append(revoke, "--all")...), "Revoked all certificates (registered: ")
	assert.Contains(t, mustRun(t, append(revoke, "--all", "--tenant", "other")...), "none of them registered")
	entries := slices.DeleteFunc(auditLog(t, s.Storage), func(entry string) bool { return strings.HasPrefix(entry, string(audit.IssueNonce)) })
	assert.Equal(t, []string{
		`Audit: revoke certificates "` + serial + `" of default/` + servertest.ClusterID + `: command`,
		`Audit: revoke certificates "" of default/` + servertest.ClusterID + `: command`,
		`Audit: revoke certificates "" of other/` + servertest.ClusterID + `: command`,
	}, entries)
}

// The certificate of an administrator does not replace the certificate of the operator, and
// can be revoked alone.
func TestIssue(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	operator := register(t, s)
	folder := filepath.Join(t.TempDir(), "identity")
	issue := append([]string{"operator", "issue", "--identity-dir", folder, "--expiry", "1h"}, clusterFlags(s)...)
	assert.Contains(t, mustRun(t, issue...), "Issued a certificate of client opr")
	require.NoError(t, call(t, s, folder, ""))
	require.NoError(t, call(t, s, operator, ""))
	listed := rows(mustRun(t, append([]string{"operator", "list"}, storageFlags(s)...)...))
	require.Len(t, listed, 2)
	index := slices.IndexFunc(listed, func(row []string) bool { return strings.HasPrefix(row[1], "opr") })
	require.GreaterOrEqual(t, index, 0)
	assert.Equal(t, "valid", listed[index][3])
	expires, err := time.Parse(time.RFC3339, listed[index][5])
	require.NoError(t, err)
	assert.InDelta(t, time.Hour, time.Until(expires), float64(time.Minute))

	mustRun(t, append([]string{"operator", "revoke", "--client", listed[index][1], "--cluster-id", servertest.ClusterID, "--all"}, storageFlags(s)...)...)
	states := map[string]string{}
	for _, row := range rows(mustRun(t, append([]string{"operator", "list"}, storageFlags(s)...)...)) {
		states[row[1]] = row[3]
	}
	assert.Equal(t, map[string]string{listed[index][1]: "revoked", servertest.ClusterID: "valid"}, states)
	client, entries := listed[index][1], auditLog(t, s.Storage)
	require.NotEmpty(t, entries)
	assert.Equal(t, []string{
		`Audit: issue certificate "` + listed[index][2] + `" of default/` + client + `: command`,
		`Audit: revoke certificates "" of default/` + client + `: command`,
	}, entries[1:], "after the nonce of the operator")

	_, err = run(t, append([]string{"operator", "issue", "--identity-dir", "", "--expiry", "0s"}, clusterFlags(s)...)...)
	wantError(t, err, "--identity-dir: must be the folder", "--expiry: 0s must be greater than zero")
}
