// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providercheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/secrets"
	secretsbackend "nstance.dev/operator/pkg/server/secrets/backend"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/backend"
)

// Subjects of the storage and of the secrets.
const (
	subjectReads   = "reads of objects"
	subjectWrites  = "conditional writes"
	subjectSecrets = "versions of secrets"
)

const (
	// concurrentWrites is how many writes of one version compete.
	concurrentWrites = 20
	// newVersionDelay is how long a question waits until a read gives a new version.
	newVersionDelay = 2 * time.Minute
	// questionInterval is the time between two such reads.
	questionInterval = time.Second
)

// storageQuestions asks about a storage. Its objects have a prefix that no server uses.
type storageQuestions struct {
	store  storage.Store
	prefix string
}

// newStorageExamination returns the questions about the storage of a kind, in which a check may
// use the keys with a prefix.
func newStorageExamination(kind string, store storage.Store, prefix string) provider.Examination {
	q := &storageQuestions{store, prefix}
	e := provider.Examination{CleanUp: q.cleanUp}
	switch kind {
	case backend.GCS:
		e.Assumptions = []provider.Assumption{{
			Subject: subjectReads, Ask: q.reads,
			Expected: "a read has the generation, and may have the time of the last write",
			Source:   "https://cloud.google.com/storage/docs/xml-api/reference-headers",
		}}
	case backend.S3:
		const page = "https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html"
		e.Assumptions = []provider.Assumption{
			{
				Subject: subjectWrites, Question: "of an object that exists, was replaced or is missing", Ask: q.conditions, Source: page,
				Expected: "each write is refused as a conflict, and an object can be created again after its deletion",
			},
			{
				Subject: subjectWrites, Question: fmt.Sprintf("%d writes of the same version at once", concurrentWrites), Ask: q.concurrent, Source: page,
				Expected: "exactly one succeeds, and the others are conflicts",
			},
		}
	}
	return e
}

func (q *storageQuestions) cleanUp(ctx context.Context) (removed []string, err error) {
	list, err := q.store.List(ctx, q.prefix)
	if err != nil {
		return nil, err
	}
	for _, object := range list {
		if err := q.store.Delete(ctx, object.Key); err != nil {
			return removed, err
		}
		removed = append(removed, object.Key)
	}
	return removed, nil
}

func (q *storageQuestions) reads(ctx context.Context, _ *provider.Trial) (provider.Answer, error) {
	key := q.prefix + "read"
	etag, err := q.store.Create(ctx, key, []byte("read"))
	if err != nil {
		return provider.Answer{}, err
	}
	object, err := q.store.Get(ctx, key)
	if err != nil {
		return provider.Answered(false, "%v", err)
	}
	modified := "without the time of the last write"
	if !object.LastModified.IsZero() {
		modified = "last write at " + object.LastModified.UTC().Format(time.RFC3339)
	}
	return provider.Answered(object.ETag == etag && string(object.Data) == "read", "generation %s, the write has %s; %s", object.ETag, etag, modified)
}

func (q *storageQuestions) conditions(ctx context.Context, _ *provider.Trial) (provider.Answer, error) {
	key := q.prefix + "conditions"
	first, err := q.store.Create(ctx, key, []byte("first"))
	if err != nil {
		return provider.Answer{}, err
	}
	_, exists := q.store.Create(ctx, key, []byte("again"))
	if _, err := q.store.Replace(ctx, key, []byte("second"), first); err != nil {
		return provider.Answer{}, err
	}
	_, replaced := q.store.Replace(ctx, key, []byte("third"), first)
	_, missing := q.store.Replace(ctx, q.prefix+"missing", []byte("first"), first)
	if err := q.store.Delete(ctx, key); err != nil {
		return provider.Answer{}, err
	}
	_, created := q.store.Create(ctx, key, []byte("first"))
	agrees := errors.Is(exists, storage.ErrConflict) && errors.Is(replaced, storage.ErrConflict) && errors.Is(missing, storage.ErrConflict) && created == nil
	return provider.Answered(agrees, "exists: %s, replaced: %s, missing: %s, created after its deletion: %s",
		describeWrite(exists), describeWrite(replaced), describeWrite(missing), describeWrite(created))
}

// describeWrite describes the result of a write.
func describeWrite(err error) string {
	switch {
	case err == nil:
		return "written"
	case errors.Is(err, storage.ErrConflict):
		return "conflict"
	}
	return err.Error()
}

func (q *storageQuestions) concurrent(ctx context.Context, _ *provider.Trial) (provider.Answer, error) {
	key := q.prefix + "concurrent"
	first, err := q.store.Create(ctx, key, []byte("first"))
	if err != nil {
		return provider.Answer{}, err
	}
	results := make([]error, concurrentWrites)
	var writers sync.WaitGroup
	for n := range results {
		writers.Go(func() { _, results[n] = q.store.Replace(ctx, key, fmt.Append(nil, n), first) })
	}
	writers.Wait()
	written, conflicts := 0, 0
	var others []error
	for _, err := range results {
		switch {
		case err == nil:
			written++
		case errors.Is(err, storage.ErrConflict):
			conflicts++
		default:
			others = append(others, err)
		}
	}
	if written <= 1 && len(others) > 0 {
		return provider.Answer{}, errors.Join(others...)
	}
	return provider.Answered(written == 1, "%d were written, %d conflicts, %d other errors", written, conflicts, len(others))
}

// secretQuestions asks about Google Secret Manager. open returns the secrets of the check, without
// what an earlier value knows.
type secretQuestions struct{ open func() (secrets.Store, error) }

// newSecretExamination returns the questions about Google Secret Manager.
func newSecretExamination(open func() (secrets.Store, error)) provider.Examination {
	q := &secretQuestions{open}
	return provider.Examination{CleanUp: q.cleanUp, Assumptions: []provider.Assumption{{
		Subject: subjectSecrets, Ask: q.versions,
		Expected: "a secret can be read at once after its creation; the newest version may be read later, and never an older one than before",
		Source:   "https://cloud.google.com/secret-manager/docs/resource-consistency",
	}}}
}

// openSecrets returns the secrets of the check of a cluster.
func openSecrets(ctx context.Context, c *config.Config) (secrets.Store, error) {
	own := c.Secrets
	own.Prefix = config.DefaultSecretsPrefix(own.Provider, provider.CheckPrefix+c.ClusterID)
	return secretsbackend.OpenWithoutKeys(ctx, own, nil)
}

func (q *secretQuestions) cleanUp(ctx context.Context) (removed []string, err error) {
	store, err := q.open()
	if err != nil {
		return nil, err
	}
	names, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := store.Delete(ctx, name); err != nil && !errors.Is(err, storage.ErrNotFound) {
			return removed, err
		}
		removed = append(removed, "secret "+name)
	}
	return removed, nil
}

func (q *secretQuestions) versions(ctx context.Context, _ *provider.Trial) (provider.Answer, error) {
	const name = "question"
	var took []string
	for _, value := range []string{"first", "second"} {
		store, err := q.open()
		if err != nil {
			return provider.Answer{}, err
		}
		if err := store.Set(ctx, name, []byte(value)); err != nil {
			if strings.Contains(err.Error(), "NOT_FOUND") {
				return provider.Answered(false, "a version right after the creation of the secret: %v", err)
			}
			return provider.Answer{}, err
		}
		delay, err := q.await(ctx, name, value)
		if err != nil {
			return provider.Answer{}, err
		}
		took = append(took, delay)
	}
	return provider.Answered(true, "the first version was read %s, the second version %s", took[0], took[1])
}

// await reads the newest version until it has a value. Each read knows nothing of those before.
func (q *secretQuestions) await(ctx context.Context, name, value string) (string, error) {
	for began := time.Now(); ; {
		store, err := q.open()
		if err != nil {
			return "", err
		}
		data, err := store.Get(ctx, name)
		since := time.Since(began)
		switch {
		case err != nil && !errors.Is(err, storage.ErrNotFound):
			return "", err
		case err == nil && string(data) == value:
			return "after " + since.Round(10*time.Millisecond).String(), nil
		case since > newVersionDelay:
			return "not after " + newVersionDelay.String(), nil
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(questionInterval):
		}
	}
}
