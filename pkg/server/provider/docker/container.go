// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"archive/tar"
	"bytes"
	"maps"
	"math"
	"path"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"nstance.dev/operator/pkg/server/provider"
)

// UserdataPath is where a container finds its userdata.
const UserdataPath = "/var/lib/nstance/userdata"

// Environment variables of every container.
const (
	envInstanceID = "NSTANCE_INSTANCE_ID"
	envProviderID = "NSTANCE_PROVIDER_ID"
	// envCPU and envMemory give the size of the instance type, in thousandths of a processor
	// and in bytes: a container sees the processors and the memory of the host.
	envCPU    = "NSTANCE_CPU_MILLIS"
	envMemory = "NSTANCE_MEMORY_BYTES"
	// envMetadata is the address of the metadata service, if it is enabled.
	envMetadata = "NSTANCE_METADATA_ADDR"
)

// nodeVolumes are folders of a kubelet that must not be on a container's overlay file system.
var nodeVolumes = []string{"/var/lib/containerd", "/var/lib/kubelet", "/var/log"}

// newContainer returns the request to create the container of an instance. metadata is the
// address of the metadata service, or empty.
func newContainer(shard provider.Shard, spec provider.Spec, a arguments, metadata string) client.ContainerCreateOptions {
	config := &container.Config{
		Hostname: spec.ID,
		Image:    a.image,
		Cmd:      a.command,
		Env:      environment(shard, spec, a, metadata),
		Labels:   labelsOf(shard, spec, a),
	}
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(spec.Subnet),
		Resources: container.Resources{
			NanoCPUs: spec.Type.CPU.MilliValue() * 1_000_000,
			Memory:   spec.Type.Memory.Value(),
		},
		Tmpfs: maps.Clone(a.tmpfs),
	}
	volumes := a.volumes
	if a.privileges != unprivileged {
		volumes = append(volumes[:len(volumes):len(volumes)], nodeVolumes...)
		makeNode(host, a.privileges)
	}
	for _, volume := range volumes {
		host.Mounts = append(host.Mounts, mountOf(volume))
	}
	return client.ContainerCreateOptions{
		Name:       spec.ID,
		Config:     config,
		HostConfig: host,
		// The daemon rejects an unknown network now, and not when the container starts.
		NetworkingConfig: &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{spec.Subnet: {}}},
	}
}

// makeNode gives a container the mounts and privileges that a kubelet needs.
func makeNode(host *container.HostConfig, privileges string) {
	for target, options := range map[string]string{"/run": "", "/tmp": "exec"} {
		if _, found := host.Tmpfs[target]; !found {
			host.Tmpfs[target] = options
		}
	}
	// With a cgroup namespace of its own, Docker limits and removes the Pods with the container.
	host.CgroupnsMode = container.CgroupnsModePrivate
	if privileges == privileged {
		host.Privileged = true
		return
	}
	host.CapAdd = []string{"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYSLOG"}
	host.SecurityOpt = []string{"seccomp=unconfined", "apparmor=unconfined"}
	host.Devices = []container.DeviceMapping{{PathOnHost: "/dev/kmsg", PathInContainer: "/dev/kmsg", CgroupPermissions: "rwm"}}
	host.DeviceCgroupRules = []string{"a *:* rwm"}
}

// mountOf returns the mount of a volume. Docker removes anonymous volumes with the container.
func mountOf(volume string) mount.Mount {
	source, target, readOnly, _ := splitVolume(volume)
	kind := mount.TypeVolume
	if path.IsAbs(source) {
		kind = mount.TypeBind
	}
	return mount.Mount{Type: kind, Source: source, Target: target, ReadOnly: readOnly}
}

// userdataArchive returns the userdata in the form in which the daemon accepts files: a tar
// archive that it unpacks in the root of the container
// (https://docs.docker.com/reference/api/engine/version/v1.47/#tag/Container/operation/PutContainerArchive).
func userdataArchive(userdata []byte) (*bytes.Buffer, error) {
	archive := new(bytes.Buffer)
	w := tar.NewWriter(archive)
	for dir := path.Dir(UserdataPath); dir != "/var/lib"; dir = path.Dir(dir) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o700}); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: UserdataPath[1:], Mode: 0o600, Size: int64(len(userdata))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(userdata); err != nil {
		return nil, err
	}
	return archive, w.Close()
}

// reservedAddresses is the number of addresses of an IPv4 subnet that no container gets: the
// network address and the broadcast address.
const reservedAddresses = 2

// roomOf returns how many more containers a network has IPv4 addresses for. A network
// without a pool of IPv4 addresses has unlimited room.
func roomOf(n network.Inspect) int {
	room, limited := 0, false
	for _, pool := range n.IPAM.Config {
		if !pool.Subnet.IsValid() || !pool.Subnet.Addr().Is4() {
			continue
		}
		limited = true
		addresses := pool.Subnet
		if pool.IPRange.IsValid() {
			addresses = pool.IPRange
		}
		room += 1 << (32 - addresses.Bits())
		if addresses == pool.Subnet {
			room -= reservedAddresses
		}
		// The daemon assigns a gateway if none is configured.
		if !pool.Gateway.IsValid() || addresses.Contains(pool.Gateway) {
			room--
		}
		for _, used := range pool.AuxAddress {
			if addresses.Contains(used) {
				room--
			}
		}
	}
	if !limited {
		return math.MaxInt32
	}
	return max(0, room-len(n.Containers))
}

// isOutOfAddresses reports whether the daemon had no address for a container. The daemon has
// no error code for this case.
func isOutOfAddresses(err error) bool {
	return strings.Contains(err.Error(), "no available IPv4 addresses") || strings.Contains(err.Error(), "no available ip addresses")
}
