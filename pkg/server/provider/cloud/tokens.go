// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"fmt"
	"maps"
	"time"
)

// usedTokensAge is how long the number of used tokens of an instance is kept. No
// instance is requested for so long.
const usedTokensAge = 24 * time.Hour

// usedTokens is how many tokens of an instance were used up, and when the last one was.
type usedTokens struct {
	count int
	last  time.Time
}

// token returns the token of the next request for an instance. The same request has the
// same token until it was certainly rejected: a repetition whose first response was lost
// creates no second machine, in this process or another.
func (p *Provider) token(id string) string {
	if used := p.tokens[id].count; used > 0 {
		return fmt.Sprintf("%s.%d", id, used)
	}
	return id
}

// useUpToken makes the next request for an instance have another token.
func (p *Provider) useUpToken(id string, now time.Time) {
	maps.DeleteFunc(p.tokens, func(_ string, used usedTokens) bool { return now.Sub(used.last) > usedTokensAge })
	p.tokens[id] = usedTokens{count: p.tokens[id].count + 1, last: now}
}
