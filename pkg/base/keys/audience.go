// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"crypto/sha256"
	"encoding/hex"
)

// Audience returns the audience for which a cloud signs the identity of a machine: a registration
// with a nonce, which names the cluster, the shard and the instance, and with a public key. An
// identity that is signed for one registration is of no use for another
// (docs/protocol.md#extensions).
func Audience(nonce string, publicKeyPEM []byte) string {
	hash := sha256.Sum256([]byte(nonce + "\n" + string(publicKeyPEM)))
	return "nstance://registration/" + hex.EncodeToString(hash[:])
}
