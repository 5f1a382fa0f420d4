// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package dockerhost prepares the Docker of this machine for nodes that are containers: it
// finds a daemon or starts one, and builds the image of the nodes.
package dockerhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	systemSocket = "/var/run/docker.sock"
	// startTimeout is how long a daemon may take to start, and stopTimeout to stop.
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// Host is a Docker daemon.
type Host struct {
	// Address is that of its API, as in DOCKER_HOST.
	Address string
	// Bridge is the address of this machine in the network of the containers.
	Bridge string
	// daemon is nil if it ran before.
	daemon *exec.Cmd
}

// Open returns the daemon of DOCKER_HOST or of the system. Where none runs, it starts one
// with its state in dir, which only root can do; Close stops it.
func Open(ctx context.Context, dir string) (*Host, error) {
	h := &Host{Address: os.Getenv("DOCKER_HOST")}
	if h.Address == "" {
		h.Address = "unix://" + systemSocket
	}
	err := h.findBridge(ctx)
	if err == nil {
		return h, nil
	}
	// One that an interrupted program has left.
	left := &Host{Address: privateAddress(dir)}
	if left.findBridge(ctx) == nil {
		return left, nil
	}
	if os.Getenv("DOCKER_HOST") != "" {
		return nil, fmt.Errorf("use the Docker of DOCKER_HOST=%s: %w", h.Address, err)
	}
	program, lookErr := exec.LookPath("dockerd")
	if lookErr != nil {
		return nil, fmt.Errorf("no Docker runs at %s, and dockerd is not installed (Debian: apt-get install docker.io iptables): %w", systemSocket, err)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("no Docker runs at %s that this user may use, and only root can start one: %w", systemSocket, err)
	}
	if err := h.start(ctx, program, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), h.Close())
	}
	return h, nil
}

func privateAddress(dir string) string { return "unix://" + filepath.Join(dir, "docker.sock") }

// start runs a daemon whose state is in dir.
func (h *Host) start(ctx context.Context, program, dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	h.Address = privateAddress(dir)
	daemon := exec.Command(program, "--host="+h.Address, "--pidfile="+filepath.Join(dir, "pid"),
		"--data-root="+filepath.Join(dir, "data"), "--exec-root="+filepath.Join(dir, "exec"))
	daemon.Stdout, daemon.Stderr = log, log
	// It has to outlive the containers that are removed after an interrupt.
	daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := daemon.Start(); err != nil {
		return err
	}
	h.daemon = daemon
	var notReady error
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		notReady = h.findBridge(ctx)
		return notReady == nil, nil
	})
	if err != nil {
		return fmt.Errorf("it is not ready after %s (log: %s): %w", startTimeout, log.Name(), notReady)
	}
	return nil
}

// Close stops the daemon if Open has started it.
func (h *Host) Close() error {
	if h.daemon == nil {
		return nil
	}
	exited := make(chan struct{})
	go func() {
		// Its status is of no interest.
		_ = h.daemon.Wait()
		close(exited)
	}()
	if err := h.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop dockerd: %w", err)
	}
	select {
	case <-exited:
		return nil
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("dockerd has not stopped within %s", stopTimeout), h.daemon.Process.Kill())
	}
}

// findBridge reads the address of this machine in the network that containers have by
// default.
func (h *Host) findBridge(ctx context.Context) error {
	var bridge struct{ Options map[string]string }
	if err := h.get(ctx, "/networks/bridge", &bridge); err != nil {
		return err
	}
	// The network itself need not name its gateway.
	name := bridge.Options["com.docker.network.bridge.name"]
	link, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("find the interface %q of Docker's network bridge: %w", name, err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return fmt.Errorf("read the addresses of interface %s: %w", name, err)
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil {
			h.Bridge = network.IP.String()
			return nil
		}
	}
	return fmt.Errorf("interface %s has no IPv4 address", name)
}

func (h *Host) get(ctx context.Context, path string, response any) error {
	socket, isUnix := strings.CutPrefix(h.Address, "unix://")
	if !isUnix {
		return fmt.Errorf("the address of Docker is %s, needs to begin with unix://: the nodes are on this machine", h.Address)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker"+path, nil)
	if err != nil {
		return err
	}
	received, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer received.Body.Close()
	body, err := io.ReadAll(received.Body)
	if err != nil {
		return err
	}
	if received.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s of Docker at %s: %s: %s", path, h.Address, received.Status, body)
	}
	return json.Unmarshal(body, response)
}

// nodeImage builds the image of the nodes, if it is not up to date, and returns its name.
// The script that builds it writes its progress to out.
func (h *Host) nodeImage(ctx context.Context, root string, out io.Writer) (string, error) {
	build := exec.CommandContext(ctx, filepath.Join(root, "hack", "node-image.sh"))
	build.Env = append(os.Environ(), "DOCKER_HOST="+h.Address, "TAG=e2e")
	build.Stdout, build.Stderr = out, out
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build the image of the nodes: %w", err)
	}
	return "nstance-node:e2e", nil
}
