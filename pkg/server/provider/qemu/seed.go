// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"encoding/base64"

	"nstance.dev/operator/pkg/server/provider/nocloud"
)

// Credential is the name under which a guest finds its userdata in SMBIOS, as a system
// credential of systemd.
const Credential = "nstance.userdata"

const credentialPrefix = "io.systemd.credential.binary:" + Credential + "="

// maxSMBIOS is the size up to which SMBIOS has the userdata. All tables together have at
// most 64 KiB.
const maxSMBIOS = 32 << 10

// writeUserdata writes the files from which the guest reads its userdata.
func (f folder) writeUserdata(userdata []byte) error {
	image, err := nocloud.New(f.id, userdata)
	if err != nil {
		return err
	}
	if err := f.write(seedFile, image); err != nil {
		return err
	}
	if !fitsSMBIOS(userdata) {
		return nil
	}
	return f.write(smbiosFile, []byte(credentialPrefix+base64.StdEncoding.EncodeToString(userdata)))
}

// fitsSMBIOS reports whether SMBIOS has the userdata.
func fitsSMBIOS(userdata []byte) bool {
	return len(credentialPrefix)+base64.StdEncoding.EncodedLen(len(userdata)) <= maxSMBIOS
}
