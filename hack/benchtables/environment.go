// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// commit returns the commit that is checked out, and whether other files than those that
// this command writes differ from it.
func commit() (string, error) {
	head, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return "", err
	}
	changes, err := git("status", "--porcelain", "--", ".", ":!"+resultsFile, ":!"+documentFile)
	if err != nil {
		return "", err
	}
	if changes != "" {
		head += " + uncommitted changes"
	}
	return head, nil
}

func git(arguments ...string) (string, error) {
	command := exec.Command("git", arguments...)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", arguments[0], err)
	}
	return strings.TrimSpace(string(output)), nil
}

// machine describes this machine.
func machine(cpu string) string {
	text := fmt.Sprintf("%s, %d CPUs", cpu, runtime.NumCPU())
	if gibibytes := memory(); gibibytes > 0 {
		text += fmt.Sprintf(", %.0f GiB", gibibytes)
	}
	return text
}

// memory returns the memory of the machine in GiB, and zero when it is unknown.
func memory() float64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kibibytes float64
	if _, err := fmt.Sscanf(string(data), "MemTotal: %f kB", &kibibytes); err != nil {
		return 0
	}
	return math.Round(kibibytes / (1 << 20))
}
