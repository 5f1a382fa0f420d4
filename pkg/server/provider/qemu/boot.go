// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/config/validation"
	"nstance.dev/operator/pkg/server/provider"
)

// Boot selects what VMs boot: a disk with a boot loader, or a kernel, or a kernel with a
// disk. Options and arguments have the same members; an argument replaces the option.
type Boot struct {
	// Image is the absolute path of a disk image, qcow2 or raw. VMs do not change it: each VM
	// writes to its own overlay disk.
	Image string
	// DiskSize is the size of the overlay disk, if it is larger than the image.
	DiskSize string
	// Kernel and Initrd are absolute paths. Append is the command line of the kernel, which is
	// visible to all users of the host.
	Kernel, Initrd, Append string
}

// Names of the members in options and arguments.
const (
	bootImage    = "image"
	bootDiskSize = "disk_size"
	bootKernel   = "kernel"
	bootInitrd   = "initrd"
	bootAppend   = "append"
)

var bootMembers = []string{bootAppend, bootDiskSize, bootImage, bootInitrd, bootKernel}

// member returns a pointer to a member by its name, or nil.
func (b *Boot) member(name string) *string {
	switch name {
	case bootImage:
		return &b.Image
	case bootDiskSize:
		return &b.DiskSize
	case bootKernel:
		return &b.Kernel
	case bootInitrd:
		return &b.Initrd
	case bootAppend:
		return &b.Append
	}
	return nil
}

func readBoot(o *jsonc.Object) Boot {
	var b Boot
	for _, name := range bootMembers {
		*b.member(name) = o.String(name)
	}
	return b
}

// with returns the options with the arguments in place of their members.
func (b Boot) with(args map[string]any) (Boot, error) {
	if errs := validateArgs(field.NewPath("args"), args, true); len(errs) > 0 {
		return Boot{}, errs.ToAggregate()
	}
	for name, value := range args {
		*b.member(name) = value.(string)
	}
	if errs := b.validate(field.NewPath("args")); len(errs) > 0 {
		return Boot{}, errs.ToAggregate()
	}
	if b.Image == "" && b.Kernel == "" {
		return Boot{}, fmt.Errorf("neither options nor arguments have an image or a kernel")
	}
	return b, nil
}

// validate returns every rule that the members break.
func (b Boot) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range bootMembers {
		errs = append(errs, validateBootMember(path.Child(name), name, *b.member(name))...)
	}
	if b.Kernel == "" && cmp.Or(b.Initrd, b.Append) != "" {
		errs = append(errs, field.Required(path.Child(bootKernel), "initrd and append need a kernel"))
	}
	if b.Image == "" && b.DiskSize != "" {
		errs = append(errs, field.Required(path.Child(bootImage), "disk_size needs an image"))
	}
	return errs
}

func validateBootMember(path *field.Path, name, value string) field.ErrorList {
	if value == "" {
		return nil
	}
	switch name {
	case bootImage, bootKernel, bootInitrd:
		return validation.AbsolutePath(path, value)
	case bootDiskSize:
		if _, err := parseSize(value); err != nil {
			return field.ErrorList{field.Invalid(path, value, err.Error())}
		}
	}
	return nil
}

// immutableFields returns all members, because they are read when the provider is created.
func (b Boot) immutableFields(path *field.Path) []provider.ImmutableField {
	var fields []provider.ImmutableField
	for _, name := range bootMembers {
		fields = append(fields, provider.ImmutableField{Path: path.Child(name), Value: *b.member(name)})
	}
	return fields
}

// ValidateArgs validates arguments before they are rendered: it ignores text with templates.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	return validateArgs(path, args, false)
}

func validateArgs(path *field.Path, args map[string]any, rendered bool) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(args)) {
		path := path.Child(name)
		if !slices.Contains(bootMembers, name) {
			errs = append(errs, field.NotSupported(path, name, bootMembers))
			continue
		}
		text, ok := args[name].(string)
		if !ok {
			errs = append(errs, field.TypeInvalid(path, args[name], "must be a string"))
			continue
		}
		// The result of a template is not known yet.
		if rendered || !strings.Contains(text, "{{") {
			errs = append(errs, validateBootMember(path, name, text)...)
		}
	}
	return errs
}

// files returns the paths of the files on the host that a VM needs.
func (b Boot) files() []string {
	return slices.DeleteFunc([]string{b.Image, b.Kernel, b.Initrd}, func(path string) bool { return path == "" })
}
