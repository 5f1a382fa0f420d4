// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// What the servers' configuration says of a static pool cannot be edited, whether
// an operator runs or not. It can be scaled, its instances may be of another type,
// and deleting it is refused.
func TestStaticPoolIsProtected(t *testing.T) {
	const name = "fixed"
	configureGroups(t, map[string]map[string]int32{name: {"us-west-2a": 1}})
	eventually(t, 2*time.Minute, "the pool is static and runs", func(ctx context.Context) error {
		return errors.Join(isStatic(ctx, name, true), running(ctx, name, 1))
	})

	t.Run("with the operator running", func(t *testing.T) {
		rejectsEdits(t, name)
		acceptsEdits(t, name, "running")
		scale(t, name, 2)
		eventually(t, 2*time.Minute, "the pool is scaled", func(ctx context.Context) error { return running(ctx, name, 2) })
		for what, remove := range map[string]func(context.Context) error{
			"NstanceMachinePool": func(ctx context.Context) error { return deletePoolDry(ctx, name) },
			"MachinePool":        func(ctx context.Context) error { return deleteMachinePoolDry(ctx, name) },
		} {
			eventually(t, time.Minute, "deleting the "+what+" is refused", func(ctx context.Context) error {
				return forbidden(remove(ctx), what, `group "fixed" is static`, "remove it from there first")
			})
		}
	})

	t.Run("with the operator stopped", func(t *testing.T) {
		stopOperator(t)
		rejectsEdits(t, name)
		acceptsEdits(t, name, "stopped")
		scale(t, name, 1)
	})

	t.Run("taken out of the configuration", func(t *testing.T) {
		reconfigure(t, "us-west-2a", func(groups map[string]nstance.Group) { delete(groups, name) })
		eventually(t, time.Minute, "the pool is dynamic", func(ctx context.Context) error { return isStatic(ctx, name, false) })
		if _, err := patchPool(t.Context(), name, `{"spec":{"template":"worker"}}`); err != nil {
			t.Error(err)
		}
		eventually(t, time.Minute, "deleting it is accepted", func(ctx context.Context) error {
			return errors.Join(deletePoolDry(ctx, name), deleteMachinePoolDry(ctx, name))
		})
	})
}

// rejectsEdits tries to change what is the servers' configuration's.
func rejectsEdits(t *testing.T, name string) {
	t.Helper()
	for _, edit := range []struct{ patch, field, rule string }{
		{`{"spec":{"template":"other"}}`, "spec.template", "template is set by the server configuration of this static group and cannot be changed"},
		{`{"spec":{"subnets":["default"]}}`, "spec.subnets", "subnets are set by the server configuration of this static group and cannot be changed"},
		{`{"spec":{"shards":["us-west-2a","us-west-2b"]}}`, "spec.shards", "shards are set by the server configuration of this static group and cannot be changed"},
	} {
		_, err := patchPool(t.Context(), name, edit.patch)
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: got error %v, want it invalid", edit.patch, err)
			continue
		}
		refused(t, err, edit.field, edit.rule)
	}
	if shown := editPool(t, name, "template: other"); !strings.Contains(shown, "# * spec.template: Forbidden") ||
		!strings.Contains(shown, "template is set by the server configuration of this static group") {
		t.Errorf("the user who edits is not told why it is refused, but shown:\n%s", shown)
	}
}

// acceptsEdits changes what is the user's.
func acceptsEdits(t *testing.T, name, value string) {
	t.Helper()
	after, err := patchPool(t.Context(), name, fmt.Sprintf(`{"spec":{"instanceType":"m7i.large","vars":{"operator":%q}}}`, value))
	if err != nil {
		t.Fatal(err)
	}
	if after.Spec.InstanceType != "m7i.large" || after.Spec.Vars["operator"] != value {
		t.Errorf("the spec is %+v", after.Spec)
	}
}

// editPool does what kubectl edit does for somebody who adds a line to the spec,
// and gives up when it is refused. It returns what the editor was shown last.
func editPool(t *testing.T, name, line string) string {
	t.Helper()
	dir := t.TempDir()
	shown, editor := filepath.Join(dir, "shown"), filepath.Join(dir, "editor")
	script := fmt.Sprintf("#!/bin/sh\ncp \"$1\" %q\ngrep -q '%s' \"$1\" || sed -i 's/^spec:$/spec:\\n  %s/' \"$1\"\n", shown, line, line)
	if err := os.WriteFile(editor, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	arguments := slices.Concat(env.kubectl[1:], []string{"edit", "--namespace", nstance.Namespace, "nsmp/" + name})
	command := exec.CommandContext(t.Context(), env.kubectl[0], arguments...)
	command.Env = append(os.Environ(), "KUBE_EDITOR="+editor, "TMPDIR="+dir)
	if output, err := command.CombinedOutput(); err == nil {
		t.Errorf("kubectl edit has succeeded: %s", output)
	}
	content, err := os.ReadFile(shown)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func patchPool(ctx context.Context, name, patch string) (*v1beta1.NstanceMachinePool, error) {
	return env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).
		Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
}

// isStatic succeeds when a pool says whether it is static, and it is as wanted.
func isStatic(ctx context.Context, name string, want bool) error {
	pool, err := getPool(ctx, name)
	if err != nil {
		return err
	}
	if pool.Status.IsStatic == nil || *pool.Status.IsStatic != want {
		return fmt.Errorf("isStatic is %v, want %t", ptr.Deref(pool.Status.IsStatic, false), want)
	}
	return nil
}

// dry are the options of a deletion that is judged and not done.
var dry = metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}

func deletePoolDry(ctx context.Context, name string) error {
	return env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).Delete(ctx, name, dry)
}

func deleteMachinePoolDry(ctx context.Context, name string) error {
	return env.capi.MachinePools(nstance.Namespace).Delete(ctx, name, dry)
}

// forbidden succeeds when err forbids something with a reason that has all parts.
func forbidden(err error, parts ...string) error {
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("got error %w, want it forbidden", cmp.Or(err, errors.New("none")))
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%w: does not say %q", err, part)
		}
	}
	return nil
}
