// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

func TestSecondUpIsRejected(t *testing.T) {
	dir := t.TempDir()
	first, err := acquire(dir)
	require.NoError(t, err)
	_, err = acquire(dir)
	var locked lockedError
	if !errors.As(err, &locked) || locked.pid != os.Getpid() {
		t.Errorf("locking twice: %v, want an error that names process %d", err, os.Getpid())
	}
	first.release()
	second, err := acquire(dir)
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	second.release()
}

func TestKillAndStartNeedARunningUp(t *testing.T) {
	d := devcluster{dir: t.TempDir()}
	for _, do := range []error{d.kill(t.Context(), "etcd"), d.start(t.Context(), "etcd")} {
		if do == nil || !strings.Contains(do.Error(), "no dev cluster runs") {
			t.Errorf("without a cluster: %v", do)
		}
	}
}

func TestUnknownComponentNamesTheKnown(t *testing.T) {
	dir := t.TempDir()
	lock, err := acquire(dir)
	require.NoError(t, err)
	defer lock.release()
	_, err = devcluster{dir: dir}.component("etdc")
	if err == nil || !strings.Contains(err.Error(), `unknown component "etdc"; known: `) {
		t.Errorf("an unknown component: %v", err)
	}
}

// TestPortsDiffer keeps the table of ports from colliding with itself or with
// the ports that the kernel hands out.
func TestPortsDiffer(t *testing.T) {
	owner := map[int]string{}
	for _, use := range portUses() {
		if other, taken := owner[use.Port]; taken {
			t.Errorf("port %d is wanted by %s and %s", use.Port, other, use.Component)
		}
		if use.Port >= 32768 {
			t.Errorf("port %d of %s may be taken by an outgoing connection", use.Port, use.Component)
		}
		owner[use.Port] = use.Component
	}
	if owner[controlPlanePorts.APIServer] != controlplane.APIServer {
		t.Errorf("port %d belongs to %q", controlPlanePorts.APIServer, owner[controlPlanePorts.APIServer])
	}
}
