// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
)

// CertificateSecret is the name of the Secret with the certificate of the operator.
const CertificateSecret = "nstance-operator-cert"

// OperatorCertificate returns the certificate that the operator has.
func (c *Cluster) OperatorCertificate(ctx context.Context) (*x509.Certificate, error) {
	secret, err := c.Kube.CoreV1().Secrets(installation.Namespace).Get(ctx, CertificateSecret, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		return nil, errors.New("the Secret has no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
