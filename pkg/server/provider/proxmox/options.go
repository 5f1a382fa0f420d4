// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Name is the name of the provider in the configuration.
const Name = "proxmox"

// Options configure the provider.
type Options struct {
	provider.CommonOptions

	// Connection configures the calls to the API.
	Connection Connection
	// Nodes are the nodes of the cluster on which virtual machines are created.
	Nodes []string
	// Image is the default image of virtual machines.
	Image Image
	// FullClone is false if the disks of virtual machines stay linked to their template.
	FullClone bool
	// ISOStorage is the storage of the userdata disks, which every node must have.
	ISOStorage string
	// Pool is the pool of the virtual machines, or empty.
	Pool string
	// MemoryCommit is how much of its memory a node may promise to virtual machines, in percent.
	MemoryCommit int32
	// Subnets says where virtual machines are created, by subnet.
	Subnets map[string]Subnet
}

// Subnet configures the network and the storage of virtual machines.
type Subnet struct {
	// Bridge is a bridge of the nodes, or a virtual network (VNet) of the cluster.
	Bridge string
	// VLAN is the VLAN tag, nil for untagged frames.
	VLAN *int32
	// Storage is the storage of the disks.
	Storage string
	// Instances is how many instances the subnet has room for, nil for no limit.
	Instances *int32
}

var (
	_ provider.Options      = (*Options)(nil)
	_ provider.AgentOptions = (*Options)(nil)
)

// ReadOptions reads the options of the provider.
func ReadOptions(o *jsonc.Object) provider.Options {
	defer o.Finish()
	options := &Options{
		CommonOptions: provider.ReadCommonOptions(o, provider.Catalogue{}),
		Connection:    readConnection(o),
		Nodes:         o.Strings("nodes"),
		Image:         readImage(o),
		FullClone:     o.Bool("full_clone", true),
		ISOStorage:    o.String("iso_storage"),
		Pool:          o.String("pool"),
		MemoryCommit:  ptr.Deref(o.Int32("memory_commit"), defaultMemoryCommit),
		Subnets:       map[string]Subnet{},
	}
	o.Object("subnets").Each(func(name string, o *jsonc.Object) {
		options.Subnets[name] = Subnet{
			Bridge: o.String("bridge"), VLAN: o.Int32("vlan"), Storage: o.String("storage"), Instances: o.Int32("instances"),
		}
	})
	return options
}

var (
	// nodeNames matches host names without a domain.
	nodeNames = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
	// storages matches ids of storages.
	storages = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$`)
	// bridges matches names of Linux network interfaces.
	bridges = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)
	// pools matches ids of pools.
	pools = regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$`)
)

// minMemory is the smallest memory of a virtual machine in bytes
// (https://pve.proxmox.com/pve-docs/qm.conf.5.html).
const minMemory = 16 << 20

// The memory that a node may promise, in percent. The default leaves a tenth to the node itself.
const (
	defaultMemoryCommit = 90
	minMemoryCommit     = 10
	maxMemoryCommit     = 1000
)

// maxVLAN is the highest VLAN tag (IEEE 802.1Q).
const maxVLAN = 4094

// Validate returns every rule that the options break.
func (o *Options) Validate(path *field.Path, subnets sets.Set[string]) field.ErrorList {
	errs := o.Connection.validate(path)
	if len(o.Nodes) == 0 {
		errs = append(errs, field.Required(path.Child("nodes"), "must have at least one node"))
	}
	for i, node := range o.Nodes {
		switch path := path.Child("nodes").Index(i); {
		case !nodeNames.MatchString(node):
			errs = append(errs, field.Invalid(path, node, "must be the name of a node"))
		case slices.Contains(o.Nodes[:i], node):
			errs = append(errs, field.Duplicate(path, node))
		}
	}
	errs = append(errs, o.Image.validate(path)...)
	errs = append(errs, provider.ValidateName(path.Child("iso_storage"), o.ISOStorage, storages, "must be the id of a storage")...)
	if o.MemoryCommit < minMemoryCommit || o.MemoryCommit > maxMemoryCommit {
		errs = append(errs, field.Invalid(path.Child("memory_commit"), o.MemoryCommit,
			fmt.Sprintf("must be a percentage from %d to %d", minMemoryCommit, maxMemoryCommit)))
	}
	if o.Pool != "" {
		errs = append(errs, provider.ValidateName(path.Child("pool"), o.Pool, pools, "must be the id of a pool")...)
	}
	errs = append(errs, provider.ValidateSubnets(
		path.Child("subnets"), o.Subnets, subnets, "must say where the machines of this subnet are created", o.validateSubnet)...)
	return append(errs, o.ValidateTypes(path.Child("instance_types"), validateType)...)
}

func (o *Options) validateSubnet(path *field.Path, subnet Subnet) field.ErrorList {
	errs := provider.ValidateName(path.Child("bridge"), subnet.Bridge, bridges, "must be the name of a bridge or a virtual network")
	switch {
	case o.FullClone:
		errs = append(errs, provider.ValidateName(path.Child("storage"), subnet.Storage, storages, "must be the id of a storage")...)
	case subnet.Storage != "":
		errs = append(errs, field.Forbidden(path.Child("storage"), "the disks of linked clones are where those of the template are"))
	}
	if subnet.VLAN != nil && (*subnet.VLAN < 1 || *subnet.VLAN > maxVLAN) {
		errs = append(errs, field.Invalid(path.Child("vlan"), *subnet.VLAN, fmt.Sprintf("must be between 1 and %d", maxVLAN)))
	}
	if subnet.Instances != nil && *subnet.Instances < 0 {
		errs = append(errs, field.Invalid(path.Child("instances"), *subnet.Instances, "must not be negative"))
	}
	return errs
}

func validateType(path *field.Path, t provider.InstanceType) field.ErrorList {
	errs := provider.ValidateAMD64(path, t)
	// A value that is no quantity was reported when it was read.
	if t.CPU.Sign() > 0 && t.CPU.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path.Child("cpu"), t.CPU.String(), "must be a whole number"))
	}
	if t.Memory.Sign() > 0 && (t.Memory.Value() < minMemory || t.Memory.Value()%(1<<20) != 0) {
		errs = append(errs, field.Invalid(path.Child("memory"), t.Memory.String(), "must be full Mi and at least 16Mi"))
	}
	return errs
}

// ImmutableFields returns the options that need a restart to change. Instance types and
// quotas can change at any time, because each Spec contains its type.
func (o *Options) ImmutableFields(path *field.Path) []provider.ImmutableField {
	return append(o.Connection.immutableFields(path),
		provider.ImmutableField{Path: path.Child("nodes"), Value: strings.Join(o.Nodes, ", ")},
		provider.ImmutableField{Path: path.Child(imageTemplate), Value: o.Image.Template},
		provider.ImmutableField{Path: path.Child(imageDiskSize), Value: o.Image.DiskSize},
		provider.ImmutableField{Path: path.Child("full_clone"), Value: fmt.Sprint(o.FullClone)},
		provider.ImmutableField{Path: path.Child("iso_storage"), Value: o.ISOStorage},
		provider.ImmutableField{Path: path.Child("pool"), Value: o.Pool},
		provider.ImmutableField{Path: path.Child("memory_commit"), Value: fmt.Sprint(o.MemoryCommit)},
		provider.ImmutableSubnets(path.Child("subnets"), o.Subnets, func(subnet Subnet) string {
			return fmt.Sprintf("bridge %q, vlan %s, storage %q, instances %s", subnet.Bridge, optional(subnet.VLAN), subnet.Storage, optional(subnet.Instances))
		}),
	)
}

func optional(value *int32) string {
	if value == nil {
		return "any"
	}
	return fmt.Sprint(*value)
}

// NewProvider returns the provider for a shard.
func (o *Options) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	api, err := NewAPI(o, shard)
	if err != nil {
		return nil, err
	}
	return cloud.New(api, cloud.Options{CallContext: callContext, ExpectedNode: expectedNode(shard)}), nil
}

// privilege is a privilege that the token needs
// (https://pve.proxmox.com/wiki/User_Management#pveum_permission_management).
type privilege struct {
	name string
	// paths are the paths that can grant the privilege. One of them is enough.
	paths []string
}

// vmPrivileges are the required privileges on virtual machines.
var vmPrivileges = []string{
	"VM.Allocate", "VM.Audit", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk",
	"VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
}

// vmPaths returns the paths that can grant privileges on virtual machines.
func (o *Options) vmPaths() []string {
	if o.Pool == "" {
		return []string{allVMs}
	}
	return []string{"/pool/" + o.Pool, allVMs}
}

// privileges returns the privileges that the token needs.
func (o *Options) privileges() []privilege {
	needed := []privilege{{name: "Sys.Audit", paths: []string{"/"}}}
	for _, name := range vmPrivileges {
		needed = append(needed, privilege{name: name, paths: o.vmPaths()})
	}
	isos := []string{"/storage/" + o.ISOStorage}
	for _, name := range []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"} {
		needed = append(needed, privilege{name: name, paths: isos})
	}
	disks, networks := map[string]bool{}, map[string]bool{}
	for _, subnet := range o.Subnets {
		disks[subnet.Storage], networks[subnet.Bridge] = true, true
	}
	for _, storage := range slices.Sorted(maps.Keys(disks)) {
		if storage != "" {
			needed = append(needed, privilege{name: "Datastore.AllocateSpace", paths: []string{"/storage/" + storage}})
		}
	}
	for _, network := range slices.Sorted(maps.Keys(networks)) {
		needed = append(needed, privilege{name: "SDN.Use", paths: []string{"/sdn/zones/localnetwork/" + network, sdnZones}})
	}
	return needed
}

// sdnZones is the path above the paths of all virtual networks, whose zones are not
// configured. allVMs is the path above the paths of all virtual machines.
const (
	sdnZones = "/sdn/zones"
	allVMs   = "/vms"
)

// grants reports whether the privileges on a path include a privilege. On a path above the
// resources that are used, it must propagate to them.
func grants(path string, privileges map[string]flag, name string) bool {
	propagates, has := privileges[name]
	return has && (bool(propagates) || path != allVMs && path != sdnZones)
}

// checkPrivileges returns an error that names the privileges that the token lacks. Once the
// token had all privileges, it does not check again.
func (a *API) checkPrivileges(ctx context.Context) error {
	a.mu.Lock()
	checked := a.checked
	a.mu.Unlock()
	if checked {
		return nil
	}
	byPath := map[string]map[string]flag{}
	var missing []string
	for _, needed := range a.options.privileges() {
		has := false
		for _, path := range needed.paths {
			if byPath[path] == nil {
				privileges, err := a.client.permissions(ctx, path)
				if err != nil {
					return fmt.Errorf("read the privileges of the API token: %w", err)
				}
				byPath[path] = privileges
			}
			has = has || grants(path, byPath[path], needed.name)
		}
		if !has {
			missing = append(missing, needed.name+" on "+strings.Join(needed.paths, " or "))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the API token lacks privileges: %s", strings.Join(missing, "; "))
	}
	a.mu.Lock()
	a.checked = true
	a.mu.Unlock()
	return nil
}

// checkVisibility returns an error if the token may not see virtual machines. The API would
// leave them out of lists without an error.
func (a *API) checkVisibility(ctx context.Context) error {
	for _, path := range a.options.vmPaths() {
		privileges, err := a.client.permissions(ctx, path)
		if err != nil {
			return fmt.Errorf("read the privileges of the API token: %w", err)
		}
		if grants(path, privileges, "VM.Audit") {
			return nil
		}
	}
	return errors.New("the API token may not see virtual machines: it lacks VM.Audit on " + strings.Join(a.options.vmPaths(), " or "))
}
