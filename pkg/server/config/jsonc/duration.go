// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package jsonc

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// parseDuration reads a duration that is not negative: as Go writes it, or a
// whole number of days, such as "21d". A day has 24 hours. Days are not mixed
// with other units.
func parseDuration(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 63)
		if err != nil {
			return 0, err
		}
		if n > uint64(math.MaxInt64/day) {
			return 0, errors.New("too many days")
		}
		return time.Duration(n) * day, nil
	}
	duration, err := time.ParseDuration(text)
	if err == nil && duration < 0 {
		err = errors.New("is negative")
	}
	return duration, err
}
