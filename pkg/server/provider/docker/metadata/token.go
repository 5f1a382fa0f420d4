// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package metadata

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Path and headers of tokens, as AWS has them.
const (
	tokenPath      = "/latest/api/token"
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	lifetimeHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
)

// maxLifetime is the longest life of a token, 6 hours.
const maxLifetime = 21600

// tokens issues tokens and checks them. A token is its expiry with a code of authentication
// that covers the machine too, so that nothing is stored. After a restart of the server
// the tokens of before are invalid.
type tokens struct {
	key [sha256.Size]byte
}

func newTokens() tokens {
	var t tokens
	// It never returns an error.
	_, _ = rand.Read(t.key[:])
	return t
}

func (t *tokens) issue(machine string, expiry time.Time) string {
	token := binary.BigEndian.AppendUint64(nil, uint64(expiry.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(token, t.code(machine, token)...))
}

func (t *tokens) valid(token, machine string, now time.Time) bool {
	decoded, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(decoded) != 8+sha256.Size {
		return false
	}
	expiry, code := decoded[:8], decoded[8:]
	return hmac.Equal(code, t.code(machine, expiry)) && now.Unix() < int64(binary.BigEndian.Uint64(expiry))
}

func (t *tokens) code(machine string, expiry []byte) []byte {
	code := hmac.New(sha256.New, t.key[:])
	code.Write(expiry)
	_, _ = io.WriteString(code, machine)
	return code.Sum(nil)
}

// serveToken issues a token for as long as the client wants.
func (s *service) serveToken(w http.ResponseWriter, r *http.Request, i *Instance) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", "OPTIONS, PUT")
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	lifetime, err := strconv.Atoi(r.Header.Get(lifetimeHeader))
	if err != nil || lifetime < 1 || lifetime > maxLifetime {
		refuse(w, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set(lifetimeHeader, strconv.Itoa(lifetime))
	_, _ = io.WriteString(w, s.tokens.issue(i.Machine, time.Now().Add(time.Duration(lifetime)*time.Second)))
}
