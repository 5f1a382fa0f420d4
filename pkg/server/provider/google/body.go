// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"maps"
	"slices"

	"nstance.dev/operator/pkg/server/provider"
)

// userdataKey is the metadata in which cloud-init and other programs look for the userdata.
const userdataKey = "user-data"

// cloudPlatform is the scope that a service account has unless arguments have others. The
// roles of the account limit it.
const cloudPlatform = "https://www.googleapis.com/auth/cloud-platform"

// body returns the virtual machine of a spec, as it is requested.
func (a *API) body(spec provider.Spec, args arguments) (vm, error) {
	subnet, known := a.options.Subnets[spec.Subnet]
	if !known {
		return vm{}, fmt.Errorf("subnet %q is not configured", spec.Subnet)
	}
	description, err := newIdentity(a.shard, spec).description()
	if err != nil {
		return vm{}, err
	}
	labels := a.labels(spec, args.labels)
	one := vm{
		Name:        spec.ID,
		Description: description,
		MachineType: fmt.Sprintf("zones/%s/machineTypes/%s", a.shard.Zone, spec.Type.Name),
		Labels:      labels,
		Metadata:    newMetadata(spec, args),
		NetworkInterfaces: []networkInterface{{
			Subnetwork: fmt.Sprintf("projects/%s/regions/%s/subnetworks/%s", a.subnetworkProject(subnet), a.shard.Region, subnet.Subnetwork),
		}},
	}
	if args.externalIP {
		one.NetworkInterfaces[0].AccessConfigs = []accessConfig{{Name: "external", Type: "ONE_TO_ONE_NAT"}}
	}
	if len(args.networkTags) > 0 {
		one.Tags = &networkTags{Items: args.networkTags}
	}
	if args.image != "" {
		one.Disks = []disk{a.bootDisk(args, labels)}
	}
	if args.serviceAccount != "" {
		scopes := args.scopes
		if len(scopes) == 0 {
			scopes = []string{cloudPlatform}
		}
		one.ServiceAccounts = []serviceAccount{{Email: args.serviceAccount, Scopes: scopes}}
	}
	switch args.provisioning {
	case spot:
		// A machine that is preempted is stopped and not deleted, so that its instance can be
		// reported as preempted. The server deletes it.
		one.Scheduling = &scheduling{
			ProvisioningModel: spot, InstanceTerminationAction: "STOP", OnHostMaintenance: "TERMINATE", AutomaticRestart: new(bool),
		}
	case standard:
		one.Scheduling = &scheduling{ProvisioningModel: standard}
	}
	return one, nil
}

// bootDisk returns a disk that is deleted with its machine.
func (a *API) bootDisk(args arguments, labels map[string]string) disk {
	params := &diskParams{SourceImage: args.image, DiskSizeGB: args.diskGB, Labels: labels}
	if args.diskType != "" {
		params.DiskType = fmt.Sprintf("zones/%s/diskTypes/%s", a.shard.Zone, args.diskType)
	}
	return disk{Boot: true, AutoDelete: true, InitializeParams: params}
}

// newMetadata returns the metadata of a machine, nil if there is none.
func newMetadata(spec provider.Spec, args arguments) *metadata {
	var items []metadataItem
	if len(spec.Userdata) > 0 {
		items = append(items, metadataItem{Key: userdataKey, Value: string(spec.Userdata)})
	}
	for _, key := range slices.Sorted(maps.Keys(args.metadata)) {
		items = append(items, metadataItem{Key: key, Value: args.metadata[key]})
	}
	if len(items) == 0 {
		return nil
	}
	return &metadata{Items: items}
}
