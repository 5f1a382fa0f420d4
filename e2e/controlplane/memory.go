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
	kib, err := c.memoryStatus()
	return kib["VmRSS"] / 1024, kib["VmHWM"] / 1024, err
}

// AnonymousMemory returns how much memory of the running component is resident and not
// a part of a file, in MiB. The other resident memory is its program, of which the
// kernel maps as much as it has cached in large pages, used or not.
func (c *Component) AnonymousMemory() (float64, error) {
	kib, err := c.memoryStatus()
	return kib["RssAnon"] / 1024, err
}

// memoryStatus returns the sizes in the component's /proc/PID/status, in KiB.
func (c *Component) memoryStatus() (map[string]float64, error) {
	pid, ok := c.PID()
	if !ok {
		return nil, fmt.Errorf("component %s does not run", c.Name)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, fmt.Errorf("reading the memory of component %s: %w", c.Name, err)
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
			return nil, fmt.Errorf("reading the memory of component %s: %w", c.Name, err)
		}
	}
	return kib, nil
}
