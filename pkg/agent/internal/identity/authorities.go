// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"nstance.dev/operator/pkg/agent/internal/atomicfile"
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
// authorities stay (docs/protocol.md#certificates).
func (i *Identity) SetIssued(issued keys.Issued) error {
	before, err := i.Certificate()
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	certificate, err := i.parse(issued.CertificatePEM)
	if err != nil {
		return fmt.Errorf("read the certificate that the server issued: %w", err)
	}
	newCA, err := i.isNewCA(certificate, issued.AuthoritiesPEM)
	if err != nil {
		return err
	}
	if newCA || before != nil && !bytes.Equal(before.Leaf.RawIssuer, certificate.Leaf.RawIssuer) {
		// It is written first, so that a crash does not lose it.
		if err := i.write(unconfirmedFile, nil); err != nil {
			return err
		}
		if newCA {
			if err := i.write(caFile, issued.AuthoritiesPEM); err != nil {
				return err
			}
		}
		return i.setCertificate(issued.CertificatePEM)
	}
	if err := i.setCertificate(issued.CertificatePEM); err != nil {
		return err
	}
	return atomicfile.Remove(i.path(unconfirmedFile))
}

// isNewCA reports whether a server has sent other authorities than those of the CA file. The error
// says that they have not issued the certificate.
func (i *Identity) isNewCA(certificate *Certificate, caPEM []byte) (bool, error) {
	if len(caPEM) == 0 {
		return false, nil
	}
	if err := authorities.Verify(certificate.Leaf, caPEM); err != nil {
		return false, fmt.Errorf("verify the certificate that the server issued with the authorities that it sent: %w", err)
	}
	present, err := i.read(caFile)
	return err == nil && !bytes.Equal(present, caPEM), err
}

// Unconfirmed reports whether the authorities, or the authority of the certificate, have changed
// since the last renewal: another renewal shows the server that they are stored.
func (i *Identity) Unconfirmed() (bool, error) {
	switch _, err := os.Stat(i.path(unconfirmedFile)); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, err
	}
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
