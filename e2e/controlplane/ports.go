// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Ports of 127.0.0.1 that the parts listen on. Zero means any free port.
type Ports struct {
	Etcd              int
	EtcdPeer          int
	APIServer         int
	ControllerManager int
	Scheduler         int
	CAPIWebhook       int
	CAPIHealth        int
	CAPIDiagnostics   int
	KWOK              int
}

// PortUse is a port and the name of the component that uses it.
type PortUse struct {
	Port      int
	Component string
}

// Uses lists the ports that are set, with their owners.
func (p *Ports) Uses() []PortUse {
	var uses []PortUse
	for _, f := range p.fields() {
		if *f.port != 0 {
			uses = append(uses, PortUse{*f.port, f.component})
		}
	}
	return uses
}

type portField struct {
	port      *int
	component string
}

func (p *Ports) fields() []portField {
	return []portField{
		{&p.Etcd, Etcd}, {&p.EtcdPeer, Etcd},
		{&p.APIServer, APIServer},
		{&p.ControllerManager, ControllerManager},
		{&p.Scheduler, Scheduler},
		{&p.CAPIWebhook, CAPI}, {&p.CAPIHealth, CAPI}, {&p.CAPIDiagnostics, CAPI},
		{&p.KWOK, KWOK},
	}
}

// fillIn gives every port that is zero a free number.
func (p *Ports) fillIn() error {
	fields := p.fields()
	ports := make([]*int, len(fields))
	for i, f := range fields {
		ports[i] = f.port
	}
	return FillInPorts(ports)
}

// FillInPorts gives every port that is zero a free number.
func FillInPorts(ports []*int) error {
	unset := slices.DeleteFunc(slices.Clone(ports), func(port *int) bool { return *port != 0 })
	free, err := FreePorts(len(unset))
	if err != nil {
		return err
	}
	for i, port := range unset {
		*port = free[i]
	}
	return nil
}

// CheckPorts returns one error that names every port in use and the component
// that wants it.
func CheckPorts(uses []PortUse) error {
	var busy []error
	for _, use := range uses {
		listener, err := listen(use.Port)
		if err != nil {
			busy = append(busy, fmt.Errorf("port %d, wanted by %s, is in use", use.Port, use.Component))
			continue
		}
		_ = listener.Close()
	}
	return errors.Join(busy...)
}

// FreePorts returns n different ports on which no process listens, and which no other
// process of these tests chooses.
func FreePorts(n int) ([]int, error) {
	const attempts = 1000
	lowest, err := portRange()
	if err != nil {
		return nil, err
	}
	chosen.Lock()
	defer chosen.Unlock()
	ports := make([]int, 0, n)
	for attempt := range attempts {
		if len(ports) == n {
			for _, port := range ports {
				chosen.ports[port] = true
			}
			return ports, nil
		}
		port := lowest + rand.IntN(rangeLength)
		// The server of a port that was chosen before may not have started yet.
		if chosen.ports[port] && attempt < attempts/2 {
			continue
		}
		listener, err := listen(port)
		if err != nil {
			continue
		}
		defer listener.Close() // open until all are chosen, so that they differ
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("found %d of %d free ports from %d to %d", len(ports), n, lowest, lowest+rangeLength-1)
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", address(port))
}

func address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// Ports are below the range of outgoing connections (from 32768,
// https://docs.kernel.org/networking/ip-sysctl.html), so that no connection takes a port before
// its server has started. Each process chooses from its own part of the range: two processes would
// choose the same port sooner or later before a server listens at it.
const (
	lowestPort  = 20000
	rangeLength = 500
	ranges      = 25
)

// portRange returns the lowest port in the part of this process. The kernel releases the lock on
// it when the process exits.
var portRange = sync.OnceValues(func() (lowest int, err error) {
	for n := range ranges {
		path := filepath.Join(os.TempDir(), fmt.Sprintf("nstance-e2e-ports-%d.lock", n))
		// An os.File is closed when it is collected.
		file, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o666)
		if err != nil {
			return 0, fmt.Errorf("reserve ports: open %s: %w", path, err)
		}
		if unix.Flock(file, unix.LOCK_EX|unix.LOCK_NB) == nil {
			return lowestPort + n*rangeLength, nil
		}
		_ = unix.Close(file)
	}
	return 0, fmt.Errorf("reserve ports: %d processes have all of them", ranges)
})

// chosen are the ports that this process has chosen.
var chosen = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}
