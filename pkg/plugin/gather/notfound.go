// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"fmt"
	"strings"
)

// NotFoundError is the error of a command whose object does not exist.
type NotFoundError struct {
	// Kind and Name are those of the object, Namespace is empty for a Node, or if all
	// namespaces were searched.
	Kind, Namespace, Name string
	// Existing are the objects that exist instead, nil if they are not listed.
	Existing []string
}

func (e *NotFoundError) Error() string {
	text := fmt.Sprintf("%s %q not found", e.Kind, e.Name)
	if e.Namespace != "" {
		text += fmt.Sprintf(" in namespace %q", e.Namespace)
	}
	switch {
	case e.Existing == nil:
		return text
	case len(e.Existing) == 0:
		return text + "; there are none"
	}
	return text + "; there are: " + strings.Join(e.Existing, ", ")
}
