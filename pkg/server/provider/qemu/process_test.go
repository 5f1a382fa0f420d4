// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/puidv7"
)

// testID is an instance id.
func testID(t *testing.T) puidv7.ID {
	t.Helper()
	id, err := puidv7.Parse("knc06bgm7733st2576nx5jht4ecj")
	if err != nil {
		id, err = puidv7.New("knc")
	}
	require.NoError(t, err)
	return id
}

// value returns what follows an option.
func value(args []string, option string) string {
	if at := slices.Index(args, option); at >= 0 {
		return args[at+1]
	}
	return ""
}

func TestCommandLine(t *testing.T) {
	o := &Options{Accel: AccelKVM, Machine: defaultMachine, Subnets: map[string]Subnet{"lan": {Bridge: "br0"}}}
	id := testID(t)
	disk := o.commandLine(id, largeType, "other", Boot{Image: "/a,b/image"}, true)
	kernel := o.commandLine(id, testType, "lan", Boot{Kernel: "/a,b/kernel", Initrd: "/initrd", Append: "console=ttyS0 a,b"}, false)

	assert.Equal(t, "guest="+id.String(), value(disk, "-name"))
	assert.Equal(t, id.UUID.String(), value(disk, "-uuid"))
	assert.Equal(t, "kvm", value(disk, "-accel"))
	assert.Equal(t, "q35", value(disk, "-machine"))
	assert.Equal(t, "2", value(disk, "-smp"))
	assert.Equal(t, "64M", value(disk, "-m"))
	assert.Equal(t, "user,id=net0", value(disk, "-netdev"))
	assert.Contains(t, value(disk, "-sandbox"), "spawn=deny")
	assert.Contains(t, disk, "type=11,path=smbios")
	assert.Contains(t, disk, "virtio-blk-pci,drive=disk,bootindex=0")
	assert.NotContains(t, disk, "-kernel")

	assert.Equal(t, "bridge,id=net0,br=br0", value(kernel, "-netdev"))
	assert.Contains(t, value(kernel, "-sandbox"), "spawn=allow")
	assert.Equal(t, "/a,b/kernel", value(kernel, "-kernel"))
	assert.Equal(t, "/initrd", value(kernel, "-initrd"))
	assert.Equal(t, "console=ttyS0 a,b", value(kernel, "-append"))
	assert.NotContains(t, kernel, "type=11,path=smbios")
	assert.NotContains(t, strings.Join(kernel, " "), diskFile)
}

func TestAddressesOfMachinesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id, err := puidv7.New("knd")
		require.NoError(t, err)
		address := macAddress(id)
		assert.Equal(t, byte(2), address[0]&3, "the address must be local and of one machine")
		assert.Equal(t, address, macAddress(id))
		seen[address.String()] = true
	}
	assert.Len(t, seen, 1000)
}
