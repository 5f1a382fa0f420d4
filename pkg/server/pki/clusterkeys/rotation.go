// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clusterkeys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// Phase is a phase of the replacement of the CA (docs/runbooks/rotate-the-ca.md#rotate-the-ca).
type Phase string

const (
	// PhaseNone means that the cluster has one authority.
	PhaseNone Phase = ""
	// PhaseAccept means that the old authority issues, and the new one is accepted too.
	PhaseAccept Phase = "accept"
	// PhaseIssue means that the new authority issues, and the old one is still accepted.
	PhaseIssue Phase = "issue"
)

// ErrPhase means that a step of the replacement does not follow the present phase.
var ErrPhase = errors.New("the step does not follow the present phase of the replacement")

// Authorities are the authorities that a cluster accepts, the object storage.AuthoritiesKey. A
// cluster whose CA was never replaced has no such object, but storage.AuthorityKey.
type Authorities struct {
	Phase Phase `json:"phase,omitempty"`
	// Accepted are the authorities that servers and clients accept. The first issues. There is a
	// second in PhaseAccept and PhaseIssue.
	Accepted []StoredAuthority `json:"accepted"`
	// ChangedAt is when the present phase began.
	ChangedAt time.Time `json:"changed_at"`
	// Unknown are fields that a later version has stored.
	Unknown storage.UnknownFields `json:"-"`
}

// StoredAuthority is one authority.
type StoredAuthority struct {
	// CertificatePEM is its certificate.
	CertificatePEM string `json:"certificate_pem"`
	// Secret is the name of the secret with its key.
	Secret string `json:"secret"`
}

// Fingerprint identifies the authority, as authorities.Fingerprint does.
func (s StoredAuthority) Fingerprint() (string, error) {
	certificate, err := pki.ParseCertificate([]byte(s.CertificatePEM))
	if err != nil {
		return "", fmt.Errorf("object %s: %w", storage.AuthoritiesKey, err)
	}
	return authorities.Fingerprint(certificate), nil
}

// Fingerprints identifies the accepted authorities. The first issues.
func (a *Authorities) Fingerprints() ([]string, error) {
	var fingerprints []string
	for _, stored := range a.Accepted {
		fingerprint, err := stored.Fingerprint()
		if err != nil {
			return nil, err
		}
		fingerprints = append(fingerprints, fingerprint)
	}
	return fingerprints, nil
}

// plainAuthorities is an Authorities without its methods, for package json.
type plainAuthorities Authorities

// MarshalJSON returns the stored form.
func (a Authorities) MarshalJSON() ([]byte, error) {
	return storage.Encode(plainAuthorities(a), a.Unknown)
}

// UnmarshalJSON reads the result of MarshalJSON of any version.
func (a *Authorities) UnmarshalJSON(data []byte) error {
	plain, unknown, err := storage.Decode[plainAuthorities](data)
	if err != nil {
		return err
	}
	plain.Unknown = unknown
	*a = Authorities(plain)
	return nil
}

// ReadAuthorities returns the authorities of a cluster, and the etag of their object, which is ""
// if the CA was never replaced. The error wraps storage.ErrNotFound if there is no CA yet.
func ReadAuthorities(ctx context.Context, store storage.Store) (a *Authorities, etag string, err error) {
	object, err := store.Get(ctx, storage.AuthoritiesKey)
	if errors.Is(err, storage.ErrNotFound) {
		if object, err = store.Get(ctx, storage.AuthorityKey); err != nil {
			return nil, "", fmt.Errorf("read the certificate of the authority: %w", err)
		}
		return &Authorities{Accepted: []StoredAuthority{{CertificatePEM: string(object.Data), Secret: authoritySecret}}}, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the authorities: %w", err)
	}
	a = &Authorities{}
	if err := json.Unmarshal(object.Data, a); err != nil {
		return nil, "", fmt.Errorf("object %s: %w", storage.AuthoritiesKey, err)
	}
	if len(a.Accepted) == 0 {
		return nil, "", fmt.Errorf("object %s: accepted is empty, needs the authority that issues", storage.AuthoritiesKey)
	}
	return a, object.ETag, nil
}

// loadAuthority returns the authorities with their keys.
func loadAuthority(ctx context.Context, store storage.Store, secrets Secrets) (*pki.Authority, error) {
	stored, etag, err := ReadAuthorities(ctx, store)
	if err != nil {
		return nil, err
	}
	object := storage.AuthoritiesKey
	if etag == "" {
		object = storage.AuthorityKey
	}
	var loaded []*pki.Authority
	for _, s := range stored.Accepted {
		key, err := read(ctx, secrets, s.Secret)
		if err != nil {
			return nil, err
		}
		authority, err := pki.LoadAuthority([]byte(s.CertificatePEM), key)
		if err != nil {
			return nil, fmt.Errorf("object %s: %w", object, err)
		}
		loaded = append(loaded, authority)
	}
	return pki.Join(loaded[0], loaded[1:]...), nil
}

func storeAuthorities(ctx context.Context, store storage.Store, a Authorities, etag string) error {
	a.ChangedAt = time.Now().UTC()
	data, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode the authorities: %w", err)
	}
	if etag == "" {
		_, err = store.Create(ctx, storage.AuthoritiesKey, data)
	} else {
		_, err = store.Replace(ctx, storage.AuthoritiesKey, data, etag)
	}
	if err != nil {
		return fmt.Errorf("store the authorities: %w", err)
	}
	return nil
}

// Begin creates another authority, which servers and clients accept from now on. It does not
// issue before Switch. The key is stored before the object that names it: after a crash in
// between, Begin creates another one, and Finish deletes the first.
func Begin(ctx context.Context, store storage.Store, secrets Secrets) error {
	a, etag, err := ReadAuthorities(ctx, store)
	if err != nil {
		return err
	}
	if a.Phase != PhaseNone {
		return fmt.Errorf("%w: the phase is %q, a replacement begins without one", ErrPhase, a.Phase)
	}
	present, err := loadAuthority(ctx, store, secrets)
	if err != nil {
		return err
	}
	next, err := pki.NewNextAuthority(present.CommonName())
	if err != nil {
		return err
	}
	keyPEM, err := next.KeyPEM()
	if err != nil {
		return fmt.Errorf("encode the key of the next authority: %w", err)
	}
	name := storage.NextAuthoritySecretPrefix + next.Fingerprints()[0][:16]
	if err := secrets.Create(ctx, name, keyPEM); err != nil {
		return fmt.Errorf("store secret %s: %w", name, err)
	}
	a.Phase = PhaseAccept
	a.Accepted = append(a.Accepted, StoredAuthority{CertificatePEM: string(next.CertificatePEM()), Secret: name})
	return storeAuthorities(ctx, store, *a, etag)
}

// Switch makes the new authority issue. The old one is accepted until Finish.
func Switch(ctx context.Context, store storage.Store) error {
	a, etag, err := ReadAuthorities(ctx, store)
	if err != nil {
		return err
	}
	if a.Phase != PhaseAccept {
		return fmt.Errorf("%w: the phase is %q, needs to be %q", ErrPhase, a.Phase, PhaseAccept)
	}
	a.Phase = PhaseIssue
	slices.Reverse(a.Accepted)
	return storeAuthorities(ctx, store, *a, etag)
}

// Cancel ends a replacement before Switch: the new authority is no longer accepted.
func Cancel(ctx context.Context, store storage.Store, secrets DeletableSecrets) error {
	return leave(ctx, store, secrets, PhaseAccept)
}

// Finish ends a replacement: the old authority is no longer accepted, and its key is deleted. After
// a crash, another call deletes what is left.
func Finish(ctx context.Context, store storage.Store, secrets DeletableSecrets) error {
	return leave(ctx, store, secrets, PhaseIssue)
}

// DeletableSecrets is implemented by secrets.Store.
type DeletableSecrets interface {
	Secrets
	List(ctx context.Context) ([]string, error)
	Delete(ctx context.Context, name string) error
}

// leave keeps only the authority that issues.
func leave(ctx context.Context, store storage.Store, secrets DeletableSecrets, phase Phase) error {
	a, etag, err := ReadAuthorities(ctx, store)
	if err != nil {
		return err
	}
	switch {
	case etag == "":
		return fmt.Errorf("%w: no replacement has begun", ErrPhase)
	case a.Phase != PhaseNone && a.Phase != phase:
		return fmt.Errorf("%w: the phase is %q, needs to be %q", ErrPhase, a.Phase, phase)
	case a.Phase == phase:
		a.Phase, a.Accepted = PhaseNone, a.Accepted[:1]
		if err := storeAuthorities(ctx, store, *a, etag); err != nil {
			return err
		}
	}
	return deleteUnused(ctx, store, secrets, a.Accepted[0])
}

// deleteUnused deletes the keys of other authorities than the accepted one. Before that it stores
// the accepted certificate where earlier versions look for it: without its key they do not start,
// and so do not issue with an authority that is no longer accepted.
func deleteUnused(ctx context.Context, store storage.Store, secrets DeletableSecrets, used StoredAuthority) error {
	object, err := store.Get(ctx, storage.AuthorityKey)
	if err != nil {
		return fmt.Errorf("read object %s: %w", storage.AuthorityKey, err)
	}
	if string(object.Data) != used.CertificatePEM {
		if _, err := store.Replace(ctx, storage.AuthorityKey, []byte(used.CertificatePEM), object.ETag); err != nil {
			return fmt.Errorf("store object %s: %w", storage.AuthorityKey, err)
		}
	}
	names, err := secrets.List(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		isKey := name == authoritySecret || strings.HasPrefix(name, storage.NextAuthoritySecretPrefix)
		if !isKey || name == used.Secret {
			continue
		}
		if err := secrets.Delete(ctx, name); err != nil && !errors.Is(err, storage.ErrNotFound) {
			return fmt.Errorf("delete secret %s: %w", name, err)
		}
	}
	return nil
}

// Loaded are the authorities that a server has loaded, the object storage.LoadedAuthoritiesKey.
type Loaded struct {
	// Fingerprints identifies the authorities. The first issues.
	Fingerprints []string  `json:"fingerprints"`
	LoadedAt     time.Time `json:"loaded_at"`
}

// StoreLoaded stores that a server has loaded authorities.
func StoreLoaded(ctx context.Context, store storage.Store, shard, server string, fingerprints []string) error {
	key := storage.LoadedAuthoritiesKey(shard, server)
	data, err := json.Marshal(Loaded{Fingerprints: fingerprints, LoadedAt: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("encode the loaded authorities: %w", err)
	}
	object, err := store.Get(ctx, key)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		_, err = store.Create(ctx, key, data)
	case err == nil:
		_, err = store.Replace(ctx, key, data, object.ETag)
	}
	if err != nil {
		return fmt.Errorf("store the loaded authorities: %w", err)
	}
	return nil
}
