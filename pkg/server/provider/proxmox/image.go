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
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/provider"
)

// Image selects the template of virtual machines. Options and arguments have the same
// members; an argument replaces the option.
type Image struct {
	// Template is the name of a template. Several nodes may have a template of that name.
	Template string
	// DiskSize is the size of the boot disk, if it is larger than the template's disk.
	DiskSize string
}

// The names of the members in options and arguments.
const (
	imageTemplate = "template"
	imageDiskSize = "disk_size"
)

// templateNames matches names of virtual machines.
var templateNames = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

func readImage(o *jsonc.Object) Image {
	return Image{Template: o.String(imageTemplate), DiskSize: o.String(imageDiskSize)}
}

// member returns a pointer to a member by its name, or nil.
func (i *Image) member(name string) *string {
	switch name {
	case imageTemplate:
		return &i.Template
	case imageDiskSize:
		return &i.DiskSize
	}
	return nil
}

// validate returns every rule that the members break.
func (i *Image) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if i.Template != "" {
		errs = provider.ValidateName(path.Child(imageTemplate), i.Template, templateNames, "must be the name of a template")
	}
	if i.DiskSize != "" {
		if _, err := diskSize(i.DiskSize); err != "" {
			errs = append(errs, field.Invalid(path.Child(imageDiskSize), i.DiskSize, err))
		}
	}
	return errs
}

// diskSize returns a size in bytes.
func diskSize(text string) (bytes int64, problem string) {
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Sign() <= 0 || size.Value()%(1<<20) != 0 {
		return 0, `must be full Mi or Gi, such as "20Gi"`
	}
	return size.Value(), ""
}

// with returns the image with the arguments in place of its members.
func (i Image) with(args map[string]any) (Image, error) {
	path := field.NewPath("args")
	errs := validateArgs(path, args)
	for name, value := range args {
		if text, ok := value.(string); ok && i.member(name) != nil {
			*i.member(name) = text
		}
	}
	errs = append(errs, i.validate(path)...)
	if i.Template == "" {
		errs = append(errs, field.Required(path.Child(imageTemplate), "neither the arguments nor the options of the provider have a template"))
	}
	return i, errs.ToAggregate()
}

// ValidateArgs validates arguments before they are rendered: it ignores text with templates.
func (o *Options) ValidateArgs(path *field.Path, args map[string]any) field.ErrorList {
	errs := validateArgs(path, args)
	known := Image{}
	for name, value := range args {
		// The result of a template is not known yet.
		if text, ok := value.(string); ok && known.member(name) != nil && !strings.Contains(text, "{{") {
			*known.member(name) = text
		}
	}
	return append(errs, known.validate(path)...)
}

// validateArgs reports arguments of the wrong name or type.
func validateArgs(path *field.Path, args map[string]any) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if new(Image).member(name) == nil {
			errs = append(errs, field.NotSupported(path.Child(name), name, []string{imageDiskSize, imageTemplate}))
		} else if _, ok := args[name].(string); !ok {
			errs = append(errs, field.TypeInvalid(path.Child(name), args[name], "must be a string"))
		}
	}
	return errs
}

// disks matches the names of disks in a configuration that a virtual machine can boot from.
// volumes also matches the disks for variables of the firmware and for the state of the TPM
// (https://pve.proxmox.com/pve-docs/qm.conf.5.html).
var (
	disks   = regexp.MustCompile(`^(scsi|virtio|sata|ide)[0-9]+$`)
	volumes = regexp.MustCompile(`^(scsi|virtio|sata|ide|efidisk|tpmstate)[0-9]+$`)
)

// bootDisk returns the first disk in the boot order, and its size in bytes.
func (c vmConfig) bootDisk() (name string, size int64, err error) {
	order := strings.FieldsFunc(strings.TrimPrefix(c.text("boot"), "order="), func(r rune) bool { return r == ';' })
	// Older templates have the disk in another property.
	for _, name := range append(order, c.text("bootdisk")) {
		drive := c.text(name)
		if !disks.MatchString(name) || drive == "" || strings.Contains(drive, "media=cdrom") {
			continue
		}
		for part := range strings.SplitSeq(drive, ",") {
			if text, found := strings.CutPrefix(part, "size="); found {
				size, err = parseDriveSize(text)
				return name, size, err
			}
		}
		return "", 0, fmt.Errorf("disk %s has no size", name)
	}
	return "", 0, errors.New("there is no disk in the boot order")
}

// parseDriveSize returns the size of a disk, such as 20G, in bytes.
func parseDriveSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "KMGT")
	number, err := strconv.ParseFloat(digits, 64)
	if err != nil || len(text)-len(digits) > 1 {
		return 0, fmt.Errorf("%q is not the size of a disk", text)
	}
	shift := map[string]int{"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[text[len(digits):]]
	return int64(number * float64(int64(1)<<shift)), nil
}

// enlarge enlarges the boot disk to the configured size, if it is smaller.
func (a *API) enlarge(ctx context.Context, l *launch, vm virtualMachine, image Image, until time.Time) error {
	if image.DiskSize == "" {
		return nil
	}
	want, problem := diskSize(image.DiskSize)
	if problem != "" {
		return errors.New(problem)
	}
	config, err := a.client.config(ctx, vm.node, vm.vmid)
	if err != nil {
		return err
	}
	disk, size, err := config.bootDisk()
	if err != nil || size >= want {
		return err
	}
	a.step("enlarge the disk")
	return a.run(ctx, until, l.step("enlarge"), func() (upid, error) { return a.client.resize(ctx, vm.node, vm.vmid, disk, want) })
}
