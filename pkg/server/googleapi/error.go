// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package googleapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Error is a response that is no success.
type Error struct {
	// Status is that of HTTP.
	Status int
	// StatusName is the canonical name of the error, such as "NOT_FOUND", which newer APIs
	// have. It is empty if something before the API has responded, such as a proxy.
	StatusName string
	// Reasons are the codes of the API. They are empty if something before the API has
	// responded, such as a proxy.
	Reasons []string
	// Message is for people.
	Message string
}

// Error returns the status, the reasons, or else the name of the status, and the message.
func (e *Error) Error() string {
	text := fmt.Sprintf("HTTP %d", e.Status)
	switch {
	case len(e.Reasons) > 0:
		text += " " + strings.Join(e.Reasons, ", ")
	case e.StatusName != "":
		text += " " + e.StatusName
	}
	return text + ": " + e.Message
}

// Has reports whether the API has responded with one of the reasons.
func (e *Error) Has(reasons ...string) bool {
	return slices.ContainsFunc(e.Reasons, func(reason string) bool { return slices.Contains(reasons, reason) })
}

// AsError returns the error with which the API has responded, and whether there is one.
func AsError(err error) (*Error, bool) { return errors.AsType[*Error](err) }

// IsNotFound reports whether the API has responded that what was named does not exist. A
// status alone may be that of a proxy.
func IsNotFound(err error) bool {
	e, ok := AsError(err)
	return ok && e.Status == http.StatusNotFound && e.Has("notFound")
}

// IsThrottled reports whether the API has responded that there were too many calls.
func IsThrottled(err error) bool {
	e, ok := AsError(err)
	return ok && (e.Status == http.StatusTooManyRequests ||
		e.Status == http.StatusForbidden && e.Has("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"))
}

// maxText is how much of an error that is text is kept.
const maxText = 2000

// parseError returns the error in a response.
func parseError(status int, data []byte) *Error {
	var body struct {
		Error struct {
			Code    int    `json:"code"`
			Status  string `json:"status"`
			Message string `json:"message"`
			Errors  []struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"errors"`
			Details []struct {
				Reason string `json:"reason"`
			} `json:"details"`
		} `json:"error"`
	}
	e := &Error{Status: status, Message: http.StatusText(status)}
	if err := json.Unmarshal(data, &body); err != nil {
		// Not from the API, or of a download, whose errors are text.
		if text := strings.TrimSpace(string(data)); text != "" && !strings.HasPrefix(text, "<") {
			e.Message = text[:min(len(text), maxText)]
		}
		return e
	}
	if body.Error.Message != "" {
		e.Message = body.Error.Message
	}
	if body.Error.Code == status {
		e.StatusName = body.Error.Status
	}
	for _, one := range body.Error.Errors {
		if one.Reason != "" {
			e.Reasons = append(e.Reasons, one.Reason)
		}
	}
	for _, one := range body.Error.Details {
		if one.Reason != "" {
			e.Reasons = append(e.Reasons, one.Reason)
		}
	}
	return e
}
