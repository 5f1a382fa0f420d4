// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// read returns the options in a text, and what is wrong with them.
func read(t *testing.T, text string) (*Options, []string) {
	t.Helper()
	return providertest.ReadOptions[*Options](t, ReadOptions, text, "subnet")
}

const minimalOptions = `"dir": "/d", "accel": "tcg", "image": "/i", "instance_types": {"small": {"cpu": "1", "memory": "1Gi", "arch": "amd64"}}`

func TestReadOptions(t *testing.T) {
	options, errs := read(t, `{`+minimalOptions+`}`)
	require.Empty(t, errs)
	assert.Equal(t, "qemu-system-x86_64", options.Binary)
	assert.Equal(t, "qemu-img", options.ImageTool)
	assert.Equal(t, "q35", options.Machine)
	assert.Equal(t, time.Minute, options.ShutdownGrace)
	assert.True(t, options.RunsAgent())
	assert.Equal(t, Boot{Image: "/i"}, options.Boot)

	options, errs = read(t, `{`+minimalOptions+`, "binary": "/qemu", "image_tool": "/img", "machine": "pc-q35-7.2", "disk_size": "20Gi",
		"kernel": "/k", "initrd": "/r", "append": "quiet", "shutdown_grace": "0s", "agent": false, "quota": {"small": 3},
		"subnets": {"subnet": {"bridge": "br0", "instances": 3, "memory": "8Gi"}}}`)
	require.Empty(t, errs)
	assert.Equal(t, Boot{Image: "/i", DiskSize: "20Gi", Kernel: "/k", Initrd: "/r", Append: "quiet"}, options.Boot)
	assert.Zero(t, options.ShutdownGrace)
	assert.False(t, options.RunsAgent())
	subnet := options.Subnets["subnet"]
	assert.Equal(t, "br0", subnet.Bridge)
	assert.EqualValues(t, 3, *subnet.Instances)
	assert.EqualValues(t, 8<<30, subnet.Memory.Value())
	assert.EqualValues(t, 3, *options.Catalogue()["small"].Quota)
}

func TestInvalidOptions(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", `{}`, []string{
			"options.dir: Required value", "options.accel: Required value: must be kvm or tcg",
			"options.instance_types: Required value: must have at least one instance type",
		}},
		{"accelerator", `{"dir": "/d", "accel": "auto", "instance_types": {"a": {"cpu": "1", "memory": "1Gi", "arch": "amd64"}}}`,
			[]string{`options.accel: Unsupported value: "auto"`}},
		{"relative paths", `{` + minimalOptions + `, "dir": "d", "kernel": "k"}`, []string{
			"dir: Duplicate value", "options.kernel: Invalid value: \"k\": must be an absolute path",
		}},
		{"kernel", `{` + minimalOptions + `, "append": "quiet"}`, []string{"options.kernel: Required value: initrd and append need a kernel"}},
		{"machine", `{` + minimalOptions + `, "machine": "q35,accel=kvm"}`, []string{"options.machine: Invalid value"}},
		{"size", `{` + minimalOptions + `, "disk_size": "big"}`, []string{"options.disk_size: Invalid value"}},
		{"subnets", `{` + minimalOptions + `, "subnets": {"subnet": {"bridge": "br0,x", "instances": -1, "memory": "0"}, "other": {}}}`, []string{
			"subnets.subnet.memory: Invalid value", `options.subnets.other: Invalid value: "other": unknown subnet, known are "subnet"`,
			"options.subnets.subnet.bridge: Invalid value", "options.subnets.subnet.instances: Invalid value: -1",
		}},
		{"types", `{` + minimalOptions + `, "quota": {"none": 1}}`, []string{"quota.none: Invalid value"}},
		{"architecture", `{"dir": "/d", "accel": "tcg", "instance_types": {"a": {"cpu": "1", "memory": "1Mi", "arch": "arm64"}}}`, []string{
			"options.instance_types.a.arch: Unsupported value: \"arm64\"", "options.instance_types.a.memory: Invalid value: \"1Mi\": must be at least 16Mi",
		}},
		{"unknown", `{` + minimalOptions + `, "bios": "x"}`, []string{"bios: Invalid value"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, errs := read(t, tc.text)
			require.Len(t, errs, len(tc.want), "%q", errs)
			for i, want := range tc.want {
				assert.Contains(t, errs[i], want)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	o := &Options{Boot: Boot{Image: "/image", DiskSize: "1Gi"}}
	path := field.NewPath("args")
	assert.Empty(t, o.ValidateArgs(path, map[string]any{"image": "/other", "append": "a", "disk_size": "{{.Vars.size}}"}))
	errs := o.ValidateArgs(path, map[string]any{"image": "other", "kernel": 3, "bios": "/b", "disk_size": "-1"})
	require.Len(t, errs, 4)
	assert.Contains(t, errs.ToAggregate().Error(), "args.bios")

	for _, tc := range []struct {
		name   string
		args   map[string]any
		want   Boot
		reject string
	}{
		{name: "none", want: Boot{Image: "/image", DiskSize: "1Gi"}},
		{name: "another image", args: map[string]any{"image": "/other", "disk_size": "2Gi"}, want: Boot{Image: "/other", DiskSize: "2Gi"}},
		{name: "a kernel instead", args: map[string]any{"image": "", "disk_size": "", "kernel": "/k"}, want: Boot{Kernel: "/k"}},
		{name: "rendered to nonsense", args: map[string]any{"disk_size": "{{"}, reject: "args.disk_size"},
		{name: "nothing to boot", args: map[string]any{"image": "", "disk_size": ""}, reject: "neither options nor arguments"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := o.Boot.with(tc.args)
			if tc.reject != "" {
				require.ErrorContains(t, err, tc.reject)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	assert.Equal(t, Boot{Image: "/image", DiskSize: "1Gi"}, o.Boot, "the options are unchanged")
}
