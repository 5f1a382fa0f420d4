// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// Cluster API reads the kubeconfig when it connects. When this token expires, it continues with
// the token that the operator has written to the Secret since.
//
// The tests of a package run in the order of their files: this test is the last that restarts
// Cluster API, and the rest of it runs beside others.
func TestCAPIStaysConnectedWhenTheTokenIsReplaced(t *testing.T) {
	const name = "token"
	env.CreatePoolForTest(t, name, 1)
	env.UntilRunning(t, name, 1)

	// The operator would replace a token of so short a lifetime before Cluster API
	// has read it.
	testcluster.Stop(t, env.OperatorProcess())
	short := putToken(t, 40*time.Second-tokenLeeway)
	from := env.AuditEnd(t)
	restartCAPI(t)
	usedBy := func(token string, from controlplane.Position) func(context.Context) error {
		return func(context.Context) error {
			watches := capiRequests(t, from, func(r controlplane.Request) bool {
				return r.Credential == "JTI="+tokenID(t, token) && r.Verb == "watch" && r.Resource == "nodes" && r.Code == http.StatusOK
			})
			if len(watches) == 0 {
				return errors.New("no watch of Nodes")
			}
			return nil
		}
	}
	testcluster.Eventually(t, time.Minute, "Cluster API uses the short token", usedBy(short, from))
	eventuallyConnected(t)
	since := probedSince(t)
	testcluster.Start(t, env.OperatorProcess())
	testcluster.Eventually(t, time.Minute, "the operator replaces the token", func(ctx context.Context) error {
		secret, err := kubeconfigSecret(ctx)
		if err == nil && tokenIn(t, secret) == short {
			err = errors.New("it is the same")
		}
		return err
	})
	secret, err := kubeconfigSecret(t.Context())
	require.NoError(t, err)
	if err := validKubeconfig(secret); err != nil {
		t.Error(err)
	}

	t.Parallel()
	testcluster.Eventually(t, 3*time.Minute, "the API server rejects the short token", func(ctx context.Context) error { return tokenRejected(ctx, short) })
	expired := env.AuditEnd(t)
	testcluster.Eventually(t, time.Minute, "Cluster API uses the new token", usedBy(tokenIn(t, secret), from))
	env.Scale(t, name, 4)
	env.UntilRunning(t, name, 4)
	writes := capiRequests(t, expired, func(r controlplane.Request) bool {
		return r.Credential == "JTI="+tokenID(t, tokenIn(t, secret)) && r.Verb == "patch" && r.Resource == "nodes" && r.Code == http.StatusOK
	})
	if len(writes) < 3 {
		t.Errorf("Cluster API wrote %d times to Nodes with the new token, want once to each of 3 new ones", len(writes))
	}
	eventuallyConnected(t)
	if now := probedSince(t); !now.Equal(&since) {
		t.Errorf("Cluster API reaches the cluster since %s, before it was since %s: it was disconnected", now, since)
	}
}
