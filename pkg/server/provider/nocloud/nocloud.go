// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nocloud makes disks from which the source NoCloud of cloud-init reads the
// userdata of a virtual machine.
package nocloud

import (
	"encoding/json"

	"nstance.dev/operator/pkg/server/provider/iso9660"
)

// label is that of the file systems that cloud-init looks for.
const label = "cidata"

// New returns a disk for an instance. The id is also the name of its host.
func New(id string, userdata []byte) ([]byte, error) {
	metadata, err := json.Marshal(map[string]string{"instance-id": id, "local-hostname": id})
	if err != nil {
		return nil, err
	}
	return iso9660.New(label, map[string][]byte{"meta-data": metadata, "user-data": userdata})
}
