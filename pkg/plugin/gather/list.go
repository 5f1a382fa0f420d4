// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/plugin/objects"
)

// pageSize is the number of objects of one page, as in kubectl.
const pageSize = 500

// pageFunc returns a page and the token of the next one.
type pageFunc[T any] func(context.Context, metav1.ListOptions) (items []T, next string, err error)

// list reads all pages of a list. what are the objects, in the plural. If a page cannot be
// read, nothing is known: an incomplete list looks as if objects did not exist.
func list[T any](ctx context.Context, what string, options metav1.ListOptions, page pageFunc[T]) objects.Read[T] {
	options.Limit = pageSize
	var read objects.Read[T]
	for {
		items, next, err := page(ctx, options)
		switch {
		case apierrors.IsResourceExpired(err) && options.Continue != "":
			// The list took longer than the API server keeps it: it is read again, at once.
			read.Items, options.Continue, options.Limit = nil, "", 0
			continue
		case err != nil:
			return objects.Unread[T](whyUnknown("list", what, err))
		}
		read.Items = append(read.Items, items...)
		if next == "" {
			return read
		}
		options.Continue = next
	}
}

// whyUnknown returns why objects are not known, after an error of the API server.
func whyUnknown(verb, what string, err error) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("forbidden to %s %s", verb, what)
	}
	return fmt.Sprintf("cannot %s %s: %v", verb, what, err)
}

// one returns the result of a get: no item if the object was not found.
func one[T any](what string, object *T, err error) objects.Read[T] {
	switch {
	case apierrors.IsNotFound(err):
		return objects.Read[T]{}
	case err != nil:
		return objects.Unread[T](whyUnknown("get", what, err))
	}
	return objects.Read[T]{Items: []T{*object}}
}
