// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"fmt"
	"os"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// serviceAccountIssuer is the issuer and the audience of the tokens that the API server
// accepts.
const serviceAccountIssuer = "https://kubernetes.default.svc"

// MintToken signs a token of a ServiceAccount as the API server does, with any
// lifetime: the API server grants no less than ten minutes. It accepts the token for a
// minute longer, and for some seconds more while it is cached.
func (cp *ControlPlane) MintToken(account *corev1.ServiceAccount, lifetime time.Duration) (string, error) {
	pem, err := os.ReadFile(cp.authority.serviceAccountKeyFile())
	if err != nil {
		return "", fmt.Errorf("reading the key for tokens: %w", err)
	}
	key, err := jwt.ParseECPrivateKeyFromPEM(pem)
	if err != nil {
		return "", fmt.Errorf("reading the key for tokens: %w", err)
	}
	now := time.Now()
	token, err := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
		"iss": serviceAccountIssuer,
		"aud": []string{serviceAccountIssuer},
		"sub": "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		"iat": now.Unix(),
		"nbf": now.Unix(),
		"exp": now.Add(lifetime).Unix(),
		"jti": string(uuid.NewUUID()),
		"kubernetes.io": map[string]any{
			"namespace":      account.Namespace,
			"serviceaccount": map[string]any{"name": account.Name, "uid": account.UID},
		},
	}).SignedString(key)
	if err != nil {
		return "", fmt.Errorf("signing a token of ServiceAccount %s/%s: %w", account.Namespace, account.Name, err)
	}
	return token, nil
}
