// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The addresses of QEMU's user network. The gateway is the host, as its processes see
// themselves at 127.0.0.1.
var (
	address    = []byte{10, 0, 2, 15}
	netmask    = []byte{255, 255, 255, 0}
	gateway    = []byte{10, 0, 2, 2}
	nameserver = "10.0.2.3"
)

// setUpNetwork gives the first network device the address of a machine in a user network.
func setUpNetwork() error {
	name, err := networkDevice()
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	for _, step := range []struct {
		device  string
		request uint
		set     func(*unix.Ifreq) error
	}{
		{"lo", unix.SIOCSIFFLAGS, up},
		{name, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address) }},
		{name, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(netmask) }},
		{name, unix.SIOCSIFFLAGS, up},
	} {
		request, err := unix.NewIfreq(step.device)
		if err == nil {
			err = step.set(request)
		}
		if err == nil {
			err = unix.IoctlIfreq(socket, step.request, request)
		}
		if err != nil {
			return fmt.Errorf("set up the network device %s: %w", step.device, err)
		}
	}
	if err := addDefaultRoute(socket); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		return err
	}
	return os.WriteFile("/etc/resolv.conf", []byte("nameserver "+nameserver+"\n"), 0o644)
}

func up(r *unix.Ifreq) error {
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return nil
}

// networkDevice waits for the first network device that is not the loopback device.
func networkDevice() (string, error) {
	for range 100 {
		devices, err := net.Interfaces()
		if err != nil {
			return "", err
		}
		for _, device := range devices {
			if device.Flags&net.FlagLoopback == 0 {
				return device.Name, nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", errors.New("there is no network device")
}

// addDefaultRoute adds the route with the struct rtentry of Linux on 64 bits.
func addDefaultRoute(socket int) error {
	route := make([]byte, 120)
	for at, ip := range map[int][]byte{8: {0, 0, 0, 0}, 24: gateway, 40: {0, 0, 0, 0}} {
		binary.LittleEndian.PutUint16(route[at:], unix.AF_INET)
		copy(route[at+4:], ip)
	}
	binary.LittleEndian.PutUint16(route[56:], unix.RTF_UP|unix.RTF_GATEWAY)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCADDRT, uintptr(unsafe.Pointer(&route[0]))); errno != 0 {
		return errno
	}
	return nil
}
