// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/provider/qemu/testguest"
)

// awaitTimeout is much longer than QEMU takes on a busy machine.
const awaitTimeout = time.Minute

var (
	testShard = provider.Shard{ClusterID: "test", ID: "a", Region: "region", Zone: "zone"}
	testType  = provider.InstanceType{Name: "small", CPU: resource.MustParse("1"), Memory: resource.MustParse("32Mi"), Arch: provider.ArchAMD64}
	largeType = provider.InstanceType{Name: "large", CPU: resource.MustParse("2"), Memory: resource.MustParse("64Mi"), Arch: provider.ArchAMD64}
)

// The boot sectors of the images of tests, in 16 bit code.
var (
	// deafGuest halts the processor forever.
	deafGuest = []byte{
		0xfa,       // cli
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to hlt
	}
	// politeGuest turns the machine off when the power button is pressed.
	politeGuest = []byte{
		0xba, 0x02, 0x06, // mov dx, 0x602
		0xb8, 0x00, 0x01, // mov ax, 0x100
		0xef,             // out dx, ax: report the button
		0xba, 0x00, 0x06, // mov dx, 0x600
		0xfb,             // sti
		0xf4,             // hlt: until the next tick of the timer
		0xed,             // in ax, dx
		0xf6, 0xc4, 0x01, // test ah, 1: was the button pressed
		0x74, 0xf8, // jz to sti
		0xba, 0x04, 0x06, // mov dx, 0x604
		0xb8, 0x00, 0x20, // mov ax, 0x2000
		0xef,       // out dx, ax: turn off
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to hlt
	}
)

// needPrograms skips the test where tests with QEMU are not enabled, and fails it where
// QEMU is not installed.
func needPrograms(t testing.TB, programs ...string) {
	t.Helper()
	testguest.SkipUnlessEnabled(t)
	for _, program := range append([]string{defaultBinary, defaultImageTool}, programs...) {
		_, err := exec.LookPath(program)
		require.NoError(t, err, "apt-get install qemu-system-x86 qemu-utils")
	}
}

// writeGuest writes the image of a guest and returns its path.
func writeGuest(t testing.TB, code []byte) string {
	t.Helper()
	image := make([]byte, 2<<20) // the BIOS boots no disk of less than a cylinder
	copy(image, code)
	image[510], image[511] = 0x55, 0xaa
	// A comma in a path has a meaning for QEMU.
	path := filepath.Join(t.TempDir(), "guest, with a comma.img")
	require.NoError(t, os.WriteFile(path, image, 0o600))
	return path
}

// testOptions returns the options of a provider whose VMs run a guest.
func testOptions(t testing.TB, code []byte) *Options {
	t.Helper()
	needPrograms(t)
	options := &Options{
		Dir:           t.TempDir(),
		Binary:        defaultBinary,
		ImageTool:     defaultImageTool,
		Accel:         AccelTCG,
		Machine:       defaultMachine,
		Boot:          Boot{Image: writeGuest(t, code)},
		ShutdownGrace: 200 * time.Millisecond,
		Subnets:       map[string]Subnet{"two": {Instances: ptr.To[int32](2)}, "unplugged": {Bridge: "nstance-none"}},
		CommonOptions: provider.CommonOptions{InstanceTypes: provider.Catalogue{testType.Name: testType, largeType.Name: largeType}},
	}
	t.Cleanup(func() {
		for _, f := range allFolders(t, options.Dir) {
			destroy(t, f)
		}
	})
	return options
}

// request returns one for a new instance.
func request(t *testing.T) cloud.Request {
	t.Helper()
	id := providertest.NewID(t)
	return cloud.Request{Token: id, Spec: provider.Spec{
		ID: id, Group: instance.GroupKey{Tenant: "default", Group: "workers"}, Kind: "knd", Template: "worker",
		Type: testType, Subnet: "subnet", CreatedAt: time.Now().UTC(), Userdata: []byte("userdata of " + id),
	}}
}

// allFolders returns the folders of the machines of all shards.
func allFolders(t testing.TB, dir string) []folder {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
	require.NoError(t, err)
	var all []folder
	for _, path := range paths {
		all = append(all, folder{id: filepath.Base(path), path: path})
	}
	return all
}

// running returns the number of processes of QEMU in all folders.
func running(t testing.TB, dir string) int {
	t.Helper()
	count := 0
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, path := range processes {
		if cwd, err := os.Readlink(path); err == nil && strings.HasPrefix(cwd, dir+"/") {
			count++
		}
	}
	return count
}

// destroy removes a machine without the provider.
func destroy(t testing.TB, f folder) {
	t.Helper()
	assert.NoError(t, f.kill())
	await(t, "the folder is unlocked", func() bool {
		lock, err := f.lock(syscall.LOCK_EX)
		if err == nil {
			err = errors.Join(f.remove(), lock.Close())
		}
		return ignoreNotExist(err) == nil
	})
}

// await waits for a condition.
func await(t testing.TB, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(awaitTimeout); !met(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v not yet: %s", awaitTimeout, what)
		}
	}
}
