// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Init is the first process of a virtual machine of tests. It sets up what an image of a
// distribution would, reads the userdata, and runs the agent if the machine has one. It
// turns the machine off when its power button is pressed.
//
// With the arguments "container FILE" it is the first process of a container that has its
// userdata in a file: it does without all that and becomes the agent.
package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	agent = "/nstance-agent"
	// agentDir is the folder that the agent uses by default.
	agentDir = "/opt/nstance-agent"
	// restartDelay is the time between two runs of the agent.
	restartDelay = time.Second
)

func main() {
	// Only a container is started with these arguments. In a virtual machine, the kernel passes
	// the words of its command line that it does not recognize
	// (https://docs.kernel.org/admin-guide/kernel-parameters.html): testguest.Append has no such
	// word.
	if len(os.Args) == 3 && os.Args[1] == "container" {
		log("failed: %v", becomeAgent(os.Args[2]))
		os.Exit(1)
	}
	log("started")
	if err := run(); err != nil {
		log("failed: %v", err)
	}
	select {} // the kernel panics if this process exits
}

// becomeAgent replaces this process with the agent, which gets the userdata in the file at path.
// It returns only if it fails.
func becomeAgent(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	userdata, err := parse(string(text))
	if err != nil {
		return err
	}
	if err := userdata.write(agentDir); err != nil {
		return err
	}
	return unix.Exec(agent, []string{agent}, append(userdata.environment(), "PATH=/", "HOME=/"))
}

func log(format string, args ...any) { fmt.Printf("init: "+format+"\n", args...) }

func run() error {
	for _, m := range []struct{ source, target, kind string }{
		{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"dev", "/dev", "devtmpfs"}, {"run", "/run", "tmpfs"}, {"tmp", "/tmp", "tmpfs"},
	} {
		if err := mount(m.source, m.target, m.kind, 0); err != nil {
			return err
		}
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	go turnOff()
	if err := setUpNetwork(); err != nil {
		return err
	}
	smbios, err := readSMBIOS("/sys/firmware/dmi/entries/11-0/raw")
	if err != nil {
		return err
	}
	userdata, err := parse(string(smbios))
	if err != nil {
		return err
	}
	log("the userdata has %d variables and %d files", len(userdata.variables), len(userdata.files))
	if _, panics := userdata.variables["PANIC"]; panics {
		os.Exit(1)
	}
	if url, found := userdata.variables["REPORT_URL"]; found {
		if err := report(url, smbios); err != nil {
			return err
		}
	}
	if err := userdata.write(agentDir); err != nil {
		return err
	}
	if _, err := os.Stat(agent); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for {
		cmd := exec.Command(agent)
		cmd.Env = append(userdata.environment(), "PATH=/", "HOME=/")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		log("the agent has exited: %v", cmd.Run())
		time.Sleep(restartDelay)
	}
}

func mount(source, target, kind string, flags uintptr) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, ""); err != nil && err != unix.EBUSY {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// loadModules loads the modules of a folder in the order of their names.
func loadModules(folder string) error {
	paths, err := filepath.Glob(filepath.Join(folder, "*.ko"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(file.Fd()), "", 0); err != nil && err != unix.EEXIST {
			return fmt.Errorf("load %s: %w", path, err)
		}
		file.Close()
	}
	return nil
}

// turnOff turns the machine off when a power button is pressed.
func turnOff() {
	const (
		eventSize   = 24
		keyEvent    = 1
		powerButton = 116
	)
	pressed := make(chan struct{})
	watched := map[string]bool{}
	for {
		paths, _ := filepath.Glob("/dev/input/event*")
		for _, path := range paths {
			file, err := os.Open(path)
			if err != nil || watched[path] {
				continue
			}
			watched[path] = true
			go func() {
				for event := make([]byte, eventSize); ; {
					if _, err := file.Read(event); err != nil {
						return
					}
					if binary.LittleEndian.Uint16(event[16:]) == keyEvent && binary.LittleEndian.Uint16(event[18:]) == powerButton {
						pressed <- struct{}{}
					}
				}
			}()
		}
		select {
		case <-pressed:
			log("the power button was pressed")
			unix.Sync()
			log("failed to turn off: %v", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// report sends the userdata, as the guest sees it, to a server of the test.
func report(url string, smbios []byte) error {
	seen := map[string]string{"smbios": string(smbios)}
	if err := mount("/dev/vda", "/seed", "iso9660", unix.MS_RDONLY); err != nil {
		return err
	}
	for _, path := range []string{"/seed/user-data", "/seed/meta-data", "/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/product_uuid"} {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen[filepath.Base(path)] = strings.TrimSuffix(string(data), "\n")
	}
	seen["smbios"] = strings.TrimSuffix(seen["smbios"], "\n")
	data, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	response, err := http.Post(url, "application/json", bytes.NewReader(data))
	if err != nil {
		return err
	}
	return response.Body.Close()
}
