// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storagetest

import (
	"context"

	"nstance.dev/operator/pkg/server/storage"
)

// Call is a call to a storage.
type Call struct {
	// Operation is the name of the method, such as Create.
	Operation string
	// Key is the key, or the prefix of List.
	Key string
	// Data is the content that Create and Replace write.
	Data []byte
}

// IsWrite reports whether the call may change an object.
func (c Call) IsWrite() bool { return c.Operation != "Get" && c.Operation != "List" }

// Intercepted is a storage whose calls a test counts, delays or fails.
type Intercepted struct {
	storage.Store
	// Intercept makes a call by calling do, or does not make it. Its error is the result,
	// even if the call was made.
	Intercept func(ctx context.Context, call Call, do func(context.Context) error) error
}

// Get implements storage.Store.
func (i Intercepted) Get(ctx context.Context, key string) (storage.Object, error) {
	return intercept(ctx, i, Call{Operation: "Get", Key: key}, func(ctx context.Context) (storage.Object, error) {
		return i.Store.Get(ctx, key)
	})
}

// GetChanged implements storage.ChangeReader.
func (i Intercepted) GetChanged(ctx context.Context, key, etag string) (storage.Object, error) {
	return intercept(ctx, i, Call{Operation: "Get", Key: key}, func(ctx context.Context) (storage.Object, error) {
		return storage.GetChanged(ctx, i.Store, key, etag)
	})
}

// Create implements storage.Store.
func (i Intercepted) Create(ctx context.Context, key string, data []byte) (string, error) {
	return intercept(ctx, i, Call{"Create", key, data}, func(ctx context.Context) (string, error) {
		return i.Store.Create(ctx, key, data)
	})
}

// Replace implements storage.Store.
func (i Intercepted) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	return intercept(ctx, i, Call{"Replace", key, data}, func(ctx context.Context) (string, error) {
		return i.Store.Replace(ctx, key, data, etag)
	})
}

// Delete implements storage.Store.
func (i Intercepted) Delete(ctx context.Context, key string) error {
	return i.Intercept(ctx, Call{Operation: "Delete", Key: key}, func(ctx context.Context) error { return i.Store.Delete(ctx, key) })
}

// List implements storage.Store.
func (i Intercepted) List(ctx context.Context, prefix string) ([]storage.Info, error) {
	return intercept(ctx, i, Call{Operation: "List", Key: prefix}, func(ctx context.Context) ([]storage.Info, error) {
		return i.Store.List(ctx, prefix)
	})
}

// intercept returns the zero value with an error: the call may still be in progress.
func intercept[T any](ctx context.Context, i Intercepted, call Call, do func(context.Context) (T, error)) (T, error) {
	var result, none T
	err := i.Intercept(ctx, call, func(ctx context.Context) (err error) {
		result, err = do(ctx)
		return err
	})
	if err != nil {
		return none, err
	}
	return result, nil
}
