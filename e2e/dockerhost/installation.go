// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
)

// Installation returns what makes the instances of an installation on a control plane
// containers of this Docker with an image, and nil for no Docker.
func (h *Host) Installation(cp *controlplane.ControlPlane, image string) (*installation.Machines, error) {
	if h == nil {
		return nil, nil
	}
	kubeconfig, err := cp.BootstrapKubeconfig()
	if err != nil {
		return nil, err
	}
	privileges, err := privileges()
	if err != nil {
		return nil, err
	}
	return &installation.Machines{
		DockerHost: h.Address,
		Image:      image,
		Privileges: privileges,
		Address:    h.Bridge,
		Kubeconfig: kubeconfig,
		CA:         cp.CA(),
	}, nil
}

// privileges are those that containers of this machine can have: one that lacks a
// capability itself cannot start privileged ones.
func privileges() (string, error) {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return "", fmt.Errorf("read the capabilities of this process: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		bounding, found := strings.CutPrefix(lines.Text(), "CapBnd:\t")
		if !found {
			continue
		}
		set, err := strconv.ParseUint(bounding, 16, 64)
		if err != nil {
			return "", fmt.Errorf("read the capabilities of this process: %w", err)
		}
		if set&(1<<unix.CAP_SYS_RESOURCE) == 0 {
			return "capabilities", nil
		}
	}
	return "privileged", lines.Err()
}
