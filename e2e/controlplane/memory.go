// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory returns how much memory of the running component is resident, and the
// most that ever was since it was started, in MiB.
func (c *Component) Memory() (resident, peak float64, err error) {
	pid, ok := c.PID()
	if !ok {
		return 0, 0, fmt.Errorf("component %s does not run", c.Name)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("reading the memory of component %s: %w", c.Name, err)
	}
	defer func() { _ = file.Close() }()
	kib := map[string]float64{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value, found := strings.CutSuffix(strings.TrimSpace(value), " kB")
		if !found {
			continue
		}
		if kib[name], err = strconv.ParseFloat(value, 64); err != nil {
			return 0, 0, fmt.Errorf("reading the memory of component %s: %w", c.Name, err)
		}
	}
	return kib["VmRSS"] / 1024, kib["VmHWM"] / 1024, nil
}
