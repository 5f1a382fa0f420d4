// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
)

// ServingCertificate issues a certificate for a server on this machine. Every client
// with one of the cluster's kubeconfig files trusts it.
func (cp *ControlPlane) ServingCertificate(name string) (tls.Certificate, error) {
	dir, err := cp.authority.serving(name)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading back the serving certificate of %s: %w", name, err)
	}
	return pair, nil
}
