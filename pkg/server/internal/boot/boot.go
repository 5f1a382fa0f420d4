// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package boot identifies the start of the machine.
package boot

import (
	"fmt"
	"os"
	"strings"
)

// ID returns an id that is another one after each start of the machine, and on each machine
// (https://docs.kernel.org/admin-guide/sysctl/kernel.html#random). It needs Linux.
func ID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id of the machine: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
