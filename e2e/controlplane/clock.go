// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"nstance.dev/operator/e2e/gobuild"
)

// ClockVariable is the environment variable that sets the clock of a program that
// ProductWithClock has built: a number of seconds ahead, or behind if negative. Monotonic
// time is not affected.
const ClockVariable = "NSTANCE_E2E_CLOCK"

// Clock returns the environment of a program whose clock is ahead of the real one.
func Clock(ahead time.Duration) []string {
	return []string{fmt.Sprintf("%s=%d", ClockVariable, int64(ahead.Seconds()))}
}

// now is the line of time.Now that reads the clock, and shift is what follows it.
const (
	now   = "\tsec, nsec, mono := runtimeNow()\n"
	shift = "\tsec += e2eShift\n"
)

// shiftSource is added to package time. It reads the variable without package os, which
// imports package time.
const shiftSource = `package time

import "syscall"

var e2eShift = func() int64 {
	text, _ := syscall.Getenv("` + ClockVariable + `")
	behind := len(text) > 0 && text[0] == '-'
	if behind {
		text = text[1:]
	}
	var seconds int64
	for _, digit := range []byte(text) {
		if digit < '0' || digit > '9' {
			panic("` + ClockVariable + ` is not a number of seconds")
		}
		seconds = seconds*10 + int64(digit-'0')
	}
	if behind {
		return -seconds
	}
	return seconds
}()
`

// ProductWithClock is Product, with programs whose clock ClockVariable sets. A wrong clock
// of a whole process cannot be simulated from outside of it: the programs are static, and
// the kernel has one clock for all.
func (b Builder) ProductWithClock(ctx context.Context) (operator, server string, err error) {
	overlay, err := b.clockOverlay(ctx)
	if err != nil {
		return "", "", fmt.Errorf("build programs with a clock of their own: %w", err)
	}
	b.flags = append(b.flags, "-overlay="+overlay)
	b.CacheDir = filepath.Join(b.cache(), "clock")
	return b.Product(ctx)
}

// clockOverlay writes the overlay of the standard library, and returns its path.
func (b Builder) clockOverlay(ctx context.Context) (string, error) {
	output, err := gobuild.Command(ctx, b.Root, "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find the standard library: %w", err)
	}
	folder := filepath.Join(strings.TrimSpace(string(output)), "src", "time")
	source, err := os.ReadFile(filepath.Join(folder, "time.go"))
	if err != nil {
		return "", err
	}
	if bytes.Count(source, []byte(now)) != 1 {
		return "", errors.New("time.Now of this version of Go reads the clock in another way")
	}
	dir := filepath.Join(b.cache(), "clock")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replaced := map[string]string{
		filepath.Join(folder, "time.go"):      filepath.Join(dir, "time.go.txt"),
		filepath.Join(folder, "e2e_shift.go"): filepath.Join(dir, "e2e_shift.go.txt"),
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	for name, data := range map[string][]byte{
		filepath.Join(dir, "time.go.txt"):      bytes.Replace(source, []byte(now), []byte(now+shift), 1),
		filepath.Join(dir, "e2e_shift.go.txt"): []byte(shiftSource),
		path:                                   overlay,
	} {
		if err := replaceFile(name, data); err != nil {
			return "", err
		}
	}
	return path, nil
}
