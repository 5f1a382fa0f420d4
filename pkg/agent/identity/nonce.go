// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"errors"

	"github.com/golang-jwt/jwt/v5"
)

// ErrNonce is the error of a nonce that no server can accept. It contains no part of it.
var ErrNonce = errors.New("the nonce is not a JWT")

// configHash returns the claim config_hash of a nonce, "" if it has none. The agent has no
// key to verify the nonce with: the server does that.
func configHash(nonce string) (string, error) {
	var claims struct {
		jwt.RegisteredClaims
		ConfigHash string `json:"config_hash"`
	}
	if _, _, err := jwt.NewParser().ParseUnverified(nonce, &claims); err != nil {
		return "", ErrNonce
	}
	return claims.ConfigHash, nil
}
