// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// disks matches the names, in a configuration, of the disks that a virtual machine can boot
// from. volumes also matches those of the firmware's variables and of the TPM's state.
var (
	disks   = regexp.MustCompile(`^(scsi|virtio|sata|ide)[0-9]+$`)
	volumes = regexp.MustCompile(`^(scsi|virtio|sata|ide|efidisk|tpmstate)[0-9]+$`)
)

// bootDisk returns the first disk in the boot order, and its size in bytes.
func (c vmConfig) bootDisk() (name string, size int64, err error) {
	order := strings.FieldsFunc(strings.TrimPrefix(c.text("boot"), "order="), func(r rune) bool { return r == ';' })
	// Older templates have it in another value.
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

// parseDriveSize returns the bytes of the size of a disk, such as 20G.
func parseDriveSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "KMGT")
	number, err := strconv.ParseFloat(digits, 64)
	if err != nil || len(text)-len(digits) > 1 {
		return 0, fmt.Errorf("%q is not the size of a disk", text)
	}
	shift := map[string]int{"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[text[len(digits):]]
	return int64(number * float64(int64(1)<<shift)), nil
}
