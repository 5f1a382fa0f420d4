// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
)

// validateRequest returns an InvalidError unless key and both revisions, which may be
// nil, are well-formed.
func validateRequest(key instance.GroupKey, revision, replaces *Revision) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	problems := validateRevision(revisionPath, revision)
	problems = append(problems, validateRevision(replacesPath, replaces)...)
	if replaces != nil && revision == nil {
		problems = append(problems, field.Required(revisionPath, "must be set together with replaces"))
	}
	if len(problems) > 0 {
		return &InvalidError{Group: key, Problems: problems}
	}
	return nil
}

// validateRevision limits what is stored of a revision, which may be nil.
func validateRevision(path *field.Path, r *Revision) field.ErrorList {
	if r == nil {
		return nil
	}
	problems := validateUID(path.Child("uid"), r.UID)
	if r.Generation < 0 {
		problems = append(problems, field.Invalid(path.Child("generation"), r.Generation, "must not be negative"))
	}
	return problems
}

func validateUID(path *field.Path, uid string) field.ErrorList {
	switch {
	case uid == "":
		return field.ErrorList{field.Required(path, "must be the uid of an object")}
	case len(uid) > maxIDLength:
		return field.ErrorList{field.Invalid(path, uid[:maxIDLength]+"...", fmt.Sprintf("must have at most %d characters", maxIDLength))}
	default:
		return nil
	}
}
