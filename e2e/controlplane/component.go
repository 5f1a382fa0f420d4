// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// How long a component may take to become ready, and to exit after SIGTERM before it
// is killed. Both are generous: the machine may be small and busy.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 15 * time.Second
)

// Spec is how a component is run.
type Spec struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	// Env is added to the environment of the process that starts the component.
	Env []string `json:"env,omitempty"`
	// Ports are the ports that the component listens on, the main port first.
	Ports []int `json:"ports,omitempty"`
	Ready Probe `json:"ready"`
}

// Component is one process of the control plane or beside it. Its state is on disk (see
// record), so that another program can show it, stop it and start it again.
type Component struct {
	Spec
	dir      string
	sequence int
	// exited is called with the state of a process that was started by Start and
	// exited without Stop or Kill. May be nil.
	exited func(state string)
	// stopping is the id of the process that was last stopped or killed.
	stopping atomic.Int64
}

// NewComponent returns a component that does not run yet and needs no control plane. Its
// state is below dir.
func NewComponent(dir string, spec Spec) *Component { return &Component{Spec: spec, dir: dir} }

// LogPath is the file that collects the component's output.
func (c *Component) LogPath() string { return logPath(c.dir, c.Name) }

// PID returns the process id of the running component, or false.
func (c *Component) PID() (int, bool) {
	r, err := readRecord(c.dir, c.Name)
	if err != nil || !r.Process.running() {
		return 0, false
	}
	return r.Process.PID, true
}

// Start runs the component as a child that does not outlive this program, and
// returns once it is ready. It is an error if the component runs already.
func (c *Component) Start(ctx context.Context) error {
	// The kernel sends the signal when the thread exits that started the child
	// (https://man7.org/linux/man-pages/man2/prctl.2.html). In a Go program a
	// thread exits before the process only if a goroutine returns while locked to it.
	return c.start(ctx, &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL})
}

// StartDetached runs the component so that it outlives this program, and
// returns once it is ready.
func (c *Component) StartDetached(ctx context.Context) error {
	return c.start(ctx, &syscall.SysProcAttr{Setsid: true})
}

// start gives the component a process group (or session) of its own, so that
// Ctrl-C on the terminal does not reach it past the ordered stop.
func (c *Component) start(ctx context.Context, attributes *syscall.SysProcAttr) error {
	if pid, running := c.PID(); running {
		return fmt.Errorf("%s is running already (process %d)", c.Name, pid)
	}
	log, err := openLog(c.LogPath())
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes
	child, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	if err := c.settle(ctx, child); err != nil {
		child.kill()
		return fmt.Errorf("start %s: %w\n%s", c.Name, err, logTail(c.LogPath(), begin))
	}
	go c.report(child)
	return nil
}

// settle records a new process and waits until it is ready.
func (c *Component) settle(ctx context.Context, child *child) error {
	if err := (record{Spec: c.Spec, Sequence: c.sequence, Process: child.id}).write(c.dir); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	probed := make(chan error, 1)
	go func() { probed <- c.Ready.wait(ctx) }()
	select {
	case err := <-probed:
		if err != nil {
			return fmt.Errorf("it did not become ready: %w", err)
		}
		return nil
	case <-child.exited:
		return fmt.Errorf("it exited before it was ready: %s", child.state())
	}
}

// report waits until a process exits, and reports it unless it was stopped or killed.
func (c *Component) report(child *child) {
	<-child.exited
	if c.exited != nil && c.stopping.Load() != int64(child.id.PID) {
		c.exited(child.state())
	}
}

// Stop terminates the component with SIGTERM, and with SIGKILL when it has not exited after a
// while. It stops the recorded process, whether this program or another one has started it.
func (c *Component) Stop(ctx context.Context) error {
	return c.stop(ctx, func(p *process) error {
		if err := p.signal(unix.SIGTERM); err != nil {
			return err
		}
		graceful, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		if err := p.wait(graceful); err == nil {
			return nil
		}
		return p.signal(unix.SIGKILL)
	})
}

// Kill kills the component with SIGKILL, like a crash.
func (c *Component) Kill(ctx context.Context) error {
	return c.stop(ctx, func(p *process) error { return p.signal(unix.SIGKILL) })
}

// Freeze suspends the component's process until Thaw, like a machine that hangs: its
// connections stay open and get no responses. It returns when all threads are suspended.
func (c *Component) Freeze() error {
	r, err := readRecord(c.dir, c.Name)
	if err != nil {
		return err
	}
	if err := c.signal(unix.SIGSTOP); err != nil {
		return err
	}
	return r.Process.awaitSuspension()
}

// Thaw resumes a frozen component.
func (c *Component) Thaw() error { return c.signal(unix.SIGCONT) }

func (c *Component) signal(signal unix.Signal) error {
	r, err := readRecord(c.dir, c.Name)
	if err != nil {
		return err
	}
	p, err := r.Process.open()
	if err != nil {
		return fmt.Errorf("send %s to %s: %w", signal, c.Name, err)
	}
	defer p.close()
	return p.signal(signal)
}

func (c *Component) stop(ctx context.Context, signal func(*process) error) error {
	r, err := readRecord(c.dir, c.Name)
	if errors.Is(err, os.ErrNotExist) {
		return nil // never started
	}
	if err != nil {
		return err
	}
	c.stopping.Store(int64(r.Process.PID))
	p, err := r.Process.open()
	if err == nil {
		defer p.close()
		err = signal(p)
		if err == nil {
			// A killed process exits at once, unless the kernel cannot kill it. Then
			// cancelling the context would not help.
			err = p.wait(context.WithoutCancel(ctx))
		}
	}
	if err != nil && !errors.Is(err, errNotRunning) {
		return fmt.Errorf("stop %s: %w", c.Name, err)
	}
	return removePID(c.dir, c.Name)
}

func openLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

// Probe checks whether a component is ready: a GET of URL returns 200.
type Probe struct {
	URL string `json:"url,omitempty"`
	// CAFile verifies the server of an https URL.
	CAFile string `json:"caFile,omitempty"`
}

// wait returns nil once the probe succeeded, or its last error when ctx is done.
func (p Probe) wait(ctx context.Context) error {
	client, err := p.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	var last error
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = p.try(ctx, client)
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

func (p Probe) client() (*http.Client, error) {
	transport := &http.Transport{}
	if p.CAFile != "" {
		pem, err := os.ReadFile(p.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading the CA for %s: %w", p.URL, err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, Timeout: 2 * time.Second}, nil
}

func (p Probe) try(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s answered %s", p.URL, response.Status)
	}
	return nil
}

// Memory returns how much memory of the running component is resident, and the
// most that ever was since it was started, in MiB.
func (c *Component) Memory() (resident, peak float64, err error) {
	kib, err := c.memoryStatus()
	return kib["VmRSS"] / 1024, kib["VmHWM"] / 1024, err
}

// AnonymousMemory returns how much memory of the running component is resident and not a part of a
// file, in MiB. The other resident memory is the program file, of which the kernel maps every
// large page that it has cached, used or not.
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
