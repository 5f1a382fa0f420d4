// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"fmt"
	"os"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Name is the name of the provider in the configuration.
const Name = "qemu"

// Accelerators. There is no default: tcg is ten times slower, and kvm may not work even if
// /dev/kvm can be opened (https://www.qemu.org/docs/master/system/introduction.html).
const (
	AccelKVM = "kvm"
	AccelTCG = "tcg"
)

const (
	defaultBinary        = "qemu-system-x86_64"
	defaultImageTool     = "qemu-img"
	defaultMachine       = "q35"
	defaultShutdownGrace = time.Minute
)

// Options configure the provider.
type Options struct {
	provider.CommonOptions

	// Dir is the absolute path of the folder with the folders of all VMs.
	Dir string
	// Binary and ImageTool are the programs, by path or by name.
	Binary, ImageTool string
	// Accel is AccelKVM or AccelTCG.
	Accel string
	// Machine is QEMU's machine type.
	Machine string
	// Boot selects what VMs boot by default.
	Boot Boot
	// ShutdownGrace is how long a guest may take to shut down before its VM is turned off.
	ShutdownGrace time.Duration
	// Subnets configures networks by subnet. Other subnets have a user network and no limit.
	Subnets map[string]Subnet
}

// Subnet configures one network of VMs.
type Subnet struct {
	// Bridge is the bridge of the host to which VMs are connected. Without a bridge, each VM
	// has its own user network, from which it reaches everything that the host reaches.
	Bridge string
	// Instances is how many instances the subnet has room for, nil for no limit.
	Instances *int32
	// Memory is the total memory of its VMs, zero for no limit.
	Memory resource.Quantity
}

var _ provider.Options = (*Options)(nil)

// ReadOptions reads the options of the provider.
func ReadOptions(o *jsonc.Object) provider.Options {
	defer o.Finish()
	return &Options{
		CommonOptions: provider.ReadCommonOptions(o, provider.Catalogue{}),
		Dir:           o.String("dir"),
		Binary:        stringOr(o, "binary", defaultBinary),
		ImageTool:     stringOr(o, "image_tool", defaultImageTool),
		Accel:         o.String("accel"),
		Machine:       stringOr(o, "machine", defaultMachine),
		Boot:          readBoot(o),
		ShutdownGrace: o.Duration("shutdown_grace", defaultShutdownGrace),
		Subnets:       readSubnets(o.Object("subnets")),
	}
}

func stringOr(o *jsonc.Object, name, fallback string) string {
	if o.Has(name) {
		return o.String(name)
	}
	return fallback
}

func readSubnets(o *jsonc.Object) map[string]Subnet {
	subnets := map[string]Subnet{}
	o.Each(func(name string, o *jsonc.Object) {
		subnet := Subnet{Bridge: o.String("bridge"), Instances: o.Int32("instances")}
		if o.Has("memory") {
			subnet.Memory = readSize(o, "memory")
		}
		subnets[name] = subnet
	})
	return subnets
}

// readSize reports a text that is not a positive number of bytes.
func readSize(o *jsonc.Object, name string) resource.Quantity {
	text := o.String(name)
	size, err := parseSize(text)
	if err != nil {
		o.Report(field.Invalid(o.Child(name), text, err.Error()))
	}
	return size
}

func parseSize(text string) (resource.Quantity, error) {
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Sign() <= 0 {
		return resource.Quantity{}, fmt.Errorf(`must be a quantity greater than zero, such as "20Gi"`)
	}
	return size, nil
}

// machineTypes matches names of QEMU's machine types, such as q35 and pc-q35-7.2.
var machineTypes = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)

// bridges matches names of Linux network interfaces.
var bridges = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// minMemory is the smallest memory of a VM in bytes.
const minMemory = 16 << 20

// Validate returns every rule that the options break.
func (o *Options) Validate(path *field.Path, subnets sets.Set[string]) field.ErrorList {
	errs := validation.Required(path.Child("dir"), o.Dir)
	if len(errs) == 0 {
		errs = validation.AbsolutePath(path.Child("dir"), o.Dir)
	}
	errs = append(errs, validation.Required(path.Child("binary"), o.Binary)...)
	errs = append(errs, validation.Required(path.Child("image_tool"), o.ImageTool)...)
	switch o.Accel {
	case AccelKVM, AccelTCG:
	case "":
		errs = append(errs, field.Required(path.Child("accel"), "must be kvm or tcg"))
	default:
		errs = append(errs, field.NotSupported(path.Child("accel"), o.Accel, []string{AccelKVM, AccelTCG}))
	}
	if !machineTypes.MatchString(o.Machine) {
		errs = append(errs, field.Invalid(path.Child("machine"), o.Machine, "must be a machine type of QEMU, such as q35"))
	}
	errs = append(errs, o.Boot.validate(path)...)
	errs = append(errs, provider.ValidateSubnets(path.Child("subnets"), o.Subnets, subnets, "", validateSubnet)...)
	return append(errs, o.ValidateTypes(path.Child("instance_types"), validateType)...)
}

func validateSubnet(path *field.Path, subnet Subnet) field.ErrorList {
	var errs field.ErrorList
	if subnet.Bridge != "" && !bridges.MatchString(subnet.Bridge) {
		errs = append(errs, field.Invalid(path.Child("bridge"), subnet.Bridge, "must be the name of a network interface"))
	}
	if subnet.Instances != nil && *subnet.Instances < 0 {
		errs = append(errs, field.Invalid(path.Child("instances"), *subnet.Instances, "must not be negative"))
	}
	return errs
}

func validateType(path *field.Path, t provider.InstanceType) field.ErrorList {
	errs := provider.ValidateAMD64(path, t)
	// A value that is no quantity was reported when it was read.
	if t.Memory.Sign() > 0 && t.Memory.Value() < minMemory {
		errs = append(errs, field.Invalid(path.Child("memory"), t.Memory.String(), "must be at least 16Mi"))
	}
	return errs
}

// ImmutableFields returns the options that need a restart to change. Instance types and
// quotas can change at any time, because each Spec contains its type.
func (o *Options) ImmutableFields(path *field.Path) []provider.ImmutableField {
	fields := []provider.ImmutableField{
		{Path: path.Child("dir"), Value: o.Dir},
		{Path: path.Child("binary"), Value: o.Binary},
		{Path: path.Child("image_tool"), Value: o.ImageTool},
		{Path: path.Child("accel"), Value: o.Accel},
		{Path: path.Child("machine"), Value: o.Machine},
		{Path: path.Child("shutdown_grace"), Value: o.ShutdownGrace.String()},
		provider.ImmutableSubnets(path.Child("subnets"), o.Subnets, func(subnet Subnet) string {
			instances := "any"
			if subnet.Instances != nil {
				instances = fmt.Sprint(*subnet.Instances)
			}
			return fmt.Sprintf("bridge %q, instances %s, memory %s", subnet.Bridge, instances, subnet.Memory.String())
		}),
	}
	return append(fields, o.Boot.immutableFields(path)...)
}

// NewProvider returns the provider for a shard.
func (o *Options) NewProvider(shard provider.Shard, callContext provider.CallContextFunc) (provider.Provider, error) {
	// The folder will contain userdata, which has secrets.
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	return cloud.New(NewAPI(o, shard), cloud.Options{CallContext: callContext, ExpectedNode: expectedNode(shard)}), nil
}
