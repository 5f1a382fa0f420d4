// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Labels of a container. LabelInstanceID identifies its instance; the container has the same
// name. A shard finds its containers by the next three labels. If it has no record of a
// container, it restores the record from the labels up to labelInfraConfigHash.
const (
	LabelInstanceID = "nstance.dev/instance-id"
	LabelManaged    = "nstance.dev/managed"
	LabelClusterID  = "nstance.dev/cluster-id"
	LabelShard      = "nstance.dev/shard"

	LabelTenant          = "nstance.dev/tenant"
	LabelGroup           = "nstance.dev/group"
	LabelInstanceType    = "nstance.dev/instance-type"
	labelOnDemand        = "nstance.dev/on-demand"
	labelIdempotencyKey  = "nstance.dev/idempotency-key"
	labelInfraConfigHash = "nstance.dev/infra-config-hash"
)

// Labels for users. No code reads them.
const (
	LabelKind      = "nstance.dev/kind"
	LabelTemplate  = "nstance.dev/template"
	LabelCreatedAt = "nstance.dev/created-at"
)

// isTrue is the value of LabelManaged and labelOnDemand.
const isTrue = "true"

// labelsOf returns the labels of an instance's container. They contain no secrets, because
// users who can list containers can read them.
func labelsOf(shard provider.Shard, spec provider.Spec, a arguments) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, a.labels)
	maps.Copy(labels, map[string]string{
		LabelInstanceID:   spec.ID,
		LabelManaged:      isTrue,
		LabelClusterID:    shard.ClusterID,
		LabelShard:        shard.ID,
		LabelTenant:       spec.Group.Tenant,
		LabelGroup:        spec.Group.Group,
		LabelInstanceType: spec.Type.Name,
		LabelKind:         spec.Kind,
		LabelTemplate:     spec.Template,
		LabelCreatedAt:    spec.CreatedAt.UTC().Format(time.RFC3339),
	})
	if spec.Origin.OnDemand {
		labels[labelOnDemand] = isTrue
	}
	if spec.Origin.IdempotencyKey != "" {
		labels[labelIdempotencyKey] = spec.Origin.IdempotencyKey
	}
	if spec.Origin.InfraConfigHash != "" {
		labels[labelInfraConfigHash] = spec.Origin.InfraConfigHash
	}
	return labels
}

// ours selects the containers of a shard.
func ours(shard provider.Shard) client.Filters {
	filters := client.Filters{}
	for name, value := range map[string]string{LabelManaged: isTrue, LabelClusterID: shard.ClusterID, LabelShard: shard.ID} {
		filters = filters.Add("label", name+"="+value)
	}
	return filters
}

// isOurs reports whether the labels belong to a container of the shard.
func isOurs(shard provider.Shard, labels map[string]string) bool {
	return labels[LabelManaged] == isTrue && labels[LabelClusterID] == shard.ClusterID && labels[LabelShard] == shard.ID
}

// providerID returns the provider id of an instance.
func providerID(shard provider.Shard, id string) string {
	return Name + ":///" + shard.Zone + "/" + id
}

// environment returns the environment of an instance's container.
func environment(shard provider.Shard, spec provider.Spec, a arguments, metadata string) []string {
	env := maps.Clone(a.env)
	maps.Copy(env, map[string]string{
		envInstanceID: spec.ID,
		envProviderID: providerID(shard, spec.ID),
		envCPU:        strconv.FormatInt(spec.Type.CPU.MilliValue(), 10),
		envMemory:     strconv.FormatInt(spec.Type.Memory.Value(), 10),
	})
	if metadata != "" {
		env[envMetadata] = metadata
	}
	var list []string
	for _, name := range sortedKeys(env) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// status is the state of a container, from a list or from an inspection.
type status struct {
	labels    map[string]string
	state     container.ContainerState
	unhealthy bool
	// exit is the exit code of the container.
	exit     string
	networks map[string]*network.EndpointSettings
}

func statusOf(c container.Summary) status {
	s := status{labels: c.Labels, state: c.State, unhealthy: c.Health != nil && c.Health.Status == container.Unhealthy}
	// The status is "Exited (137) 2 hours ago", whose end changes with time.
	if _, after, found := strings.Cut(c.Status, "Exited ("); found {
		s.exit, _, _ = strings.Cut(after, ")")
	}
	// Daemons before version 29 report the health only in the text: "Up 2 hours (unhealthy)".
	s.unhealthy = s.unhealthy || strings.HasSuffix(c.Status, "(unhealthy)")
	if c.NetworkSettings != nil {
		s.networks = c.NetworkSettings.Networks
	}
	return s
}

func statusOfInspected(c container.InspectResponse) status {
	s := status{labels: c.Config.Labels, state: c.State.Status}
	s.unhealthy = c.State.Health != nil && c.State.Health.Status == container.Unhealthy
	s.exit = strconv.Itoa(c.State.ExitCode)
	if c.NetworkSettings != nil {
		s.networks = c.NetworkSettings.Networks
	}
	return s
}

// neverStarted is the reason of a container that was created and not started, because the
// process has stopped in between.
const neverStarted = "the container was never started"

// vm returns the VM of a container.
func (s status) vm(shard provider.Shard) cloud.VM {
	vm := cloud.VM{
		ID:         s.labels[LabelInstanceID],
		ProviderID: providerID(shard, s.labels[LabelInstanceID]),
		Group:      instance.GroupKey{Tenant: s.labels[LabelTenant], Group: s.labels[LabelGroup]},
		Origin: instance.Origin{
			OnDemand:        s.labels[labelOnDemand] == isTrue,
			IdempotencyKey:  s.labels[labelIdempotencyKey],
			InfraConfigHash: s.labels[labelInfraConfigHash],
		},
		Type:      s.labels[LabelInstanceType],
		Addresses: s.addresses(),
	}
	vm.State, vm.Reason = s.instanceState()
	// A user may start it, and the daemon does if a user has given it a restart policy
	// (https://docs.docker.com/engine/containers/start-containers-automatically/).
	vm.MayReturn = s.state == container.StateExited
	return vm
}

// instanceState returns the state of an instance whose container is in a state.
func (s status) instanceState() (state instance.State, reason string) {
	switch s.state {
	case container.StateCreated:
		return instance.Failed, neverStarted
	case container.StateRunning:
		if s.unhealthy {
			return instance.Impaired, "the health check of the container fails"
		}
		return instance.Running, ""
	case container.StatePaused:
		return instance.Impaired, "the container is paused"
	case container.StateRestarting:
		return instance.Impaired, "the container is restarting"
	case container.StateRemoving:
		return instance.Terminating, ""
	case container.StateExited:
		return instance.Stopped, fmt.Sprintf("the container has exited with code %s", s.exit)
	case container.StateDead:
		return instance.Failed, "the container is dead"
	default:
		return instance.Impaired, fmt.Sprintf("the container is in the unknown state %q", s.state)
	}
}

// addresses returns the addresses of a container, IPv4 first, in the order of the names of
// its networks.
func (s status) addresses() []netip.Addr {
	var addresses, ipv6 []netip.Addr
	for _, name := range slices.Sorted(maps.Keys(s.networks)) {
		if endpoint := s.networks[name]; endpoint != nil {
			if endpoint.IPAddress.IsValid() {
				addresses = append(addresses, endpoint.IPAddress)
			}
			if endpoint.GlobalIPv6Address.IsValid() {
				ipv6 = append(ipv6, endpoint.GlobalIPv6Address)
			}
		}
	}
	return append(addresses, ipv6...)
}

// expectedNode returns the function that predicts the Nodes of a shard.
func expectedNode(shard provider.Shard) func(provider.Spec) *corev1.Node {
	return func(spec provider.Spec) *corev1.Node {
		return cloud.LinuxNode(shard, spec.Type, spec.Type.CPU, spec.Type.Memory)
	}
}
