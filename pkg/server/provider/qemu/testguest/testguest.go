// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package testguest builds a kernel and an initramfs for virtual machines of tests. The
// kernel comes from a distribution. The initramfs contains only the program of package init.
package testguest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/source"
)

// EnabledEnv is "1" where tests use QEMU, which make test-machines sets. Elsewhere they are
// skipped: booting machines takes minutes.
const EnabledEnv = "NSTANCE_TEST_MACHINES"

// KernelEnv has the folder with an unpacked kernel package of Debian, which
// hack/guest-kernel.sh writes.
const KernelEnv = "NSTANCE_TEST_KERNEL"

// Append is the command line of the kernel.
const Append = "console=ttyS0 quiet panic=-1"

// initFolder has the program of the guest.
const initFolder = "pkg/server/provider/qemu/testguest/init"

// modules are the modules that the guest needs, without their dependencies.
var modules = []string{"virtio_pci", "virtio_net", "virtio_blk", "isofs", "button", "evdev", "pvpanic-pci", "virtio-rng"}

// SkipUnlessEnabled skips a test that uses QEMU where such tests are not enabled.
func SkipUnlessEnabled(t testing.TB) {
	t.Helper()
	if os.Getenv(EnabledEnv) != "1" {
		t.Skipf("%s is not 1 (make test-machines)", EnabledEnv)
	}
}

// Build builds the guest and returns the paths of its kernel and initramfs. The initramfs
// has the given files of the host, by name in the guest.
func Build(t testing.TB, files map[string]string) (kernel, initrd string) {
	t.Helper()
	SkipUnlessEnabled(t)
	root := os.Getenv(KernelEnv)
	require.NotEmpty(t, root, "%s is not set: hack/guest-kernel.sh FOLDER downloads a kernel", KernelEnv)
	kernels, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	require.NoError(t, err)
	require.Len(t, kernels, 1, "kernels in %s", root)
	version := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")

	content := []File{{Name: "init", Path: BuildInit(t, "amd64"), Mode: 0o755}}
	paths, err := resolve(filepath.Join(root, "lib", "modules", version), modules)
	require.NoError(t, err)
	for i, path := range paths {
		content = append(content, File{Name: fmt.Sprintf("modules/%02d-%s", i, filepath.Base(path)), Path: path, Mode: 0o644})
	}
	for name, path := range files {
		content = append(content, File{Name: name, Path: path, Mode: 0o755})
	}
	initrd = filepath.Join(t.TempDir(), "initrd")
	file, err := os.Create(initrd)
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, WriteInitramfs(file, content))
	return kernels[0], initrd
}

// BuildInit builds the program that is the first one of a guest or of a container, and
// returns its path.
func BuildInit(t testing.TB, arch string) string {
	t.Helper()
	// The test may be one of another module, which does not require all that the program does.
	module, err := source.Root(initFolder+"/*.go", "go.mod", "go.sum")
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "init")
	build := exec.Command("go", "build", "-o", program, "-ldflags=-s -w", "./"+initFolder)
	build.Dir = module
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	return program
}
