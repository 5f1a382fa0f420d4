// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The fields of a static pool that the servers' configuration sets cannot be edited,
// whether an operator runs or not. The pool can be scaled, its instances may be of
// another type, and deleting it is rejected.
func TestStaticPoolIsProtected(t *testing.T) {
	const name = "fixed"
	configureGroups(t, map[string]map[string]int32{name: {"us-west-2a": 1}})
	testcluster.Eventually(t, 2*time.Minute, "the pool is static and runs", func(ctx context.Context) error {
		return errors.Join(isStatic(ctx, name, true), env.Running(ctx, name, 1))
	})

	t.Run("a var that the configuration does not allow", func(t *testing.T) {
		_, err := env.PatchNstanceMachinePool(t.Context(), name, `{"spec":{"vars":{"operator":"early"}}}`)
		require.NoError(t, err)
		testcluster.Eventually(t, time.Minute, "the server rejects it", func(ctx context.Context) error {
			pool, err := env.NstanceMachinePool(ctx, name)
			if err != nil {
				return err
			}
			ready := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionReady)
			if ready == nil || ready.Reason != v1beta1.ReasonConfigRejected || !strings.Contains(ready.Message, "limits.vars") {
				return fmt.Errorf("Ready is %+v", ready)
			}
			return nil
		})
		configureGroup(t, "us-west-2a", func(groups map[string]installation.Group) {
			changed := groups[name]
			changed.OperatorVars = []string{"oper*"}
			groups[name] = changed
		})
	})

	t.Run("with the operator running", func(t *testing.T) {
		expectEditsRejected(t, name)
		expectEditsAccepted(t, name, "running")
		testcluster.Eventually(t, time.Minute, "a new pool with another template is rejected", func(ctx context.Context) error {
			pool := testcluster.NewNstanceMachinePool(name, "us-west-2a")
			pool.Spec.Template = "other"
			return invalid(createDry(ctx, pool), `spec.template: Invalid value: "other": group "fixed" is static`, `sets "worker"`)
		})
		env.Scale(t, name, 2)
		env.UntilRunning(t, name, 2)
		expectDeletionsRejected(t, name)
	})

	t.Run("with the operator stopped", func(t *testing.T) {
		testcluster.Stop(t, env.OperatorProcess())
		expectEditsRejected(t, name)
		expectEditsAccepted(t, name, "stopped")
		expectDeletionsRejected(t, name)
		env.Scale(t, name, 1)
	})

	t.Run("removed from the configuration", func(t *testing.T) {
		configureGroup(t, "us-west-2a", func(groups map[string]installation.Group) { delete(groups, name) })
		testcluster.Eventually(t, time.Minute, "the pool is dynamic", func(ctx context.Context) error { return isStatic(ctx, name, false) })
		if _, err := env.PatchNstanceMachinePool(t.Context(), name, `{"spec":{"template":"worker"}}`); err != nil {
			t.Error(err)
		}
		testcluster.Eventually(t, time.Minute, "deleting it is accepted", func(ctx context.Context) error {
			return errors.Join(deletePoolDry(ctx, name), deleteMachinePoolDry(ctx, name))
		})
	})
}

// expectEditsRejected tries to change the fields that the servers' configuration sets.
func expectEditsRejected(t *testing.T, name string) {
	t.Helper()
	for _, edit := range []struct{ patch, field string }{
		{patch: `{"spec":{"template":"other"}}`, field: "spec.template: Forbidden"},
		{patch: `{"spec":{"subnets":["default"]}}`, field: "spec.subnets: Forbidden"},
		{patch: `{"spec":{"shards":["us-west-2b"]}}`, field: "spec.shards: Forbidden"},
	} {
		_, err := env.PatchNstanceMachinePool(t.Context(), name, edit.patch)
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: got error %v, want it invalid", edit.patch, err)
			continue
		}
		expectRejected(t, err, edit.field, "static group")
	}
	if shown := editPool(t, name, "template: other"); !strings.Contains(shown, "# * spec.template: Forbidden") ||
		!strings.Contains(shown, "static group") {
		t.Errorf("the editor does not show why the edit is rejected, but:\n%s", shown)
	}
}

// expectEditsAccepted changes the fields that the user sets.
func expectEditsAccepted(t *testing.T, name, value string) {
	t.Helper()
	after, err := env.PatchNstanceMachinePool(t.Context(), name, fmt.Sprintf(`{"spec":{"instanceType":"m7i.large","vars":{"operator":%q}}}`, value))
	require.NoError(t, err)
	if after.Spec.InstanceType != "m7i.large" || after.Spec.Vars["operator"] != value {
		t.Errorf("the spec is %+v", after.Spec)
	}
}

// expectDeletionsRejected tries to delete the pool and its MachinePool.
func expectDeletionsRejected(t *testing.T, name string) {
	t.Helper()
	for what, remove := range map[string]func(context.Context, string) error{"NstanceMachinePool": deletePoolDry, "MachinePool": deleteMachinePoolDry} {
		testcluster.Eventually(t, time.Minute, "deleting the "+what+" is rejected", func(ctx context.Context) error {
			return forbidden(remove(ctx, name), what, fmt.Sprintf("group %q", name), "static")
		})
	}
}

// editPool runs kubectl edit for a user who adds a line to the spec, and gives up when it is
// rejected. It returns the last content of the editor.
func editPool(t *testing.T, name, line string) string {
	t.Helper()
	dir := t.TempDir()
	shown, editor := filepath.Join(dir, "shown"), filepath.Join(dir, "editor")
	script := fmt.Sprintf("#!/bin/sh\ncp \"$1\" %q\ngrep -q '%s' \"$1\" || sed -i 's/^spec:$/spec:\\n  %s/' \"$1\"\n", shown, line, line)
	require.NoError(t, os.WriteFile(editor, []byte(script), 0o700))
	command := env.KubectlCommand(t.Context(), "edit", "nsmp/"+name)
	command.Env = append(os.Environ(), "KUBE_EDITOR="+editor, "TMPDIR="+dir)
	if output, err := command.CombinedOutput(); err == nil {
		t.Errorf("kubectl edit has succeeded: %s", output)
	}
	content, err := os.ReadFile(shown)
	require.NoError(t, err)
	return string(content)
}

// isStatic succeeds when a pool reports whether it is static, as wanted.
func isStatic(ctx context.Context, name string, want bool) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	if pool.Status.IsStatic == nil || *pool.Status.IsStatic != want {
		return fmt.Errorf("isStatic is %v, want %t", ptr.Deref(pool.Status.IsStatic, false), want)
	}
	return nil
}

// dry has the options of a deletion that is only validated.
var dry = metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}

func deletePoolDry(ctx context.Context, name string) error {
	return env.NstanceMachinePools().Delete(ctx, name, dry)
}

func deleteMachinePoolDry(ctx context.Context, name string) error {
	return env.MachinePools().Delete(ctx, name, dry)
}

// forbidden succeeds when err is Forbidden with a message that has all parts.
func forbidden(err error, parts ...string) error {
	return rejectedFor(metav1.StatusReasonForbidden, err, parts)
}

// invalid succeeds when err is Invalid with a message that has all parts.
func invalid(err error, parts ...string) error {
	return rejectedFor(metav1.StatusReasonInvalid, err, parts)
}

func rejectedFor(reason metav1.StatusReason, err error, parts []string) error {
	if apierrors.ReasonForError(err) != reason {
		return fmt.Errorf("got error %w, want the reason %s", cmp.Or(err, errors.New("none")), reason)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%w: does not contain %q", err, part)
		}
	}
	return nil
}
