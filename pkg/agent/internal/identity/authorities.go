// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"bytes"
	"fmt"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/base/keys"
)

// Trusted returns the fingerprints of the authorities in the CA file.
func (i *Identity) Trusted() ([]string, error) {
	data, err := i.read(caFile)
	if err != nil {
		return nil, err
	}
	return authorities.Fingerprints(data), nil
}

// SetIssued stores the authorities and the certificate that a server issued, in this order: a
// crash in between leaves the present certificate, which servers accept as long as the authority
// that issued it. A server that does not know the extension sends no authorities, and the present
// authorities stay (docs/protocol.md#certificates). It reports whether the authorities, or the
// authority of the certificate, have changed: then another renewal shows the server that they are
// stored.
func (i *Identity) SetIssued(issued keys.Issued) (changed bool, err error) {
	before, err := i.Certificate()
	if err != nil {
		return false, err
	}
	if len(issued.AuthoritiesPEM) > 0 {
		if changed, err = i.setCA(issued); err != nil {
			return false, err
		}
	}
	if err := i.SetCertificate(issued.CertificatePEM); err != nil {
		return changed, err
	}
	after, err := i.Certificate()
	if err != nil {
		return changed, err
	}
	if before != nil && !bytes.Equal(before.Leaf.RawIssuer, after.Leaf.RawIssuer) {
		changed = true
	}
	return changed, nil
}

// setCA replaces the CA file, unless its authorities have not issued the certificate.
func (i *Identity) setCA(issued keys.Issued) (changed bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	certificate, err := i.parse(issued.CertificatePEM)
	if err != nil {
		return false, fmt.Errorf("read the certificate that the server issued: %w", err)
	}
	if err := authorities.Verify(certificate.Leaf, issued.AuthoritiesPEM); err != nil {
		return false, fmt.Errorf("verify the certificate that the server issued with the authorities that it sent: %w", err)
	}
	present, err := i.read(caFile)
	if err != nil || bytes.Equal(present, issued.AuthoritiesPEM) {
		return false, err
	}
	return true, i.write(caFile, issued.AuthoritiesPEM)
}

// Outdated reports whether the last server that the agent connected to shows that the CA of the
// cluster is being replaced.
func (i *Identity) Outdated() bool {
	i.mu.Lock()
	last := i.last
	i.mu.Unlock()
	data, err := i.read(caFile)
	if err != nil {
		return false
	}
	trusted, err := authorities.Parse(data)
	if err != nil {
		return false
	}
	certificate, err := i.Certificate()
	return err == nil && certificate != nil && last.Outdated(trusted, certificate.Leaf)
}
