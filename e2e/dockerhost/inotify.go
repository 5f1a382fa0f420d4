// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dockerhost

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// maxInotifyInstances is the kernel's limit for the inotify instances of a user.
	maxInotifyInstances = "/proc/sys/fs/inotify/max_user_instances"
	// wantInotifyInstances is enough for a hundred nodes: containerd and the kubelet of one
	// have eight, all of the same user. The default of many kernels, 128, is enough for 15.
	wantInotifyInstances = 1024
)

// allowInotify raises a limit of this machine that is too low for its nodes: a kubelet that
// gets no inotify instance exits, and its node with it.
func allowInotify(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the limit of inotify instances: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("read the limit of inotify instances of %s: %w", file, err)
	}
	if limit >= wantInotifyInstances {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(wantInotifyInstances)), 0o644); err != nil {
		return fmt.Errorf("raise fs.inotify.max_user_instances from %d to %d, which the kubelets of the nodes need: %w",
			limit, wantInotifyInstances, err)
	}
	return nil
}
