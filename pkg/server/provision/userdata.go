// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/nonce"
)

const (
	// fetchTimeout bounds the fetching of userdata from a URL, answer included.
	fetchTimeout = 10 * time.Second
	// maxUserdata is the longest template that is fetched, in bytes: much more
	// than any provider takes.
	maxUserdata = 1 << 20
)

// userdata returns what the instance starts with; nil when its group has no
// userdata, and then there is nothing to put a nonce into.
func (p *Provisioner) userdata(ctx context.Context, group *groups.Group, record *instance.Record, facts facts) ([]byte, error) {
	if group.Userdata == (config.Userdata{}) {
		return nil, nil
	}
	secret := secretFacts{facts: facts}
	var err error
	secret.Nonce, err = p.Nonces.Agent(nonce.Agent{
		InstanceID: record.ID,
		ClusterID:  facts.Cluster.ID,
		Tenant:     record.Tenant,
		Shard:      facts.Server.Shard,
		Group:      record.Group,
		OnDemand:   record.OnDemand,
		ConfigHash: group.RuntimeConfigHash,
	})
	if err != nil {
		return nil, fmt.Errorf("making the registration nonce: %w", err)
	}
	text := group.Userdata.Inline
	if group.Userdata.URL != "" {
		if text, err = p.fetch(ctx, group.Userdata.URL); err != nil {
			return nil, fmt.Errorf("fetching the userdata of template %q: %w", group.Template, err)
		}
	}
	rendered, err := render("userdata", text, secret)
	if err != nil {
		return nil, err
	}
	// Without them the agent cannot register (server document).
	if !strings.Contains(rendered, record.ID) || !strings.Contains(rendered, secret.Nonce) {
		return nil, fmt.Errorf("the userdata of template %q must contain {{.Instance.ID}} and {{.Nonce}}", group.Template)
	}
	return encode([]byte(rendered), group.Userdata.Encoding)
}

// fetch returns the text at address. The error has the host in it and not the
// rest of the address, which may have a password or a signature.
func (p *Provisioner) fetch(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", withoutURL(err)
	}
	text, err := p.get(request)
	if err != nil {
		return "", fmt.Errorf("from %s: %w", request.URL.Host, withoutURL(err))
	}
	return text, nil
}

func (p *Provisioner) get(request *http.Request) (string, error) {
	response, err := p.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the answer is %s", response.Status)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxUserdata+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxUserdata {
		return "", fmt.Errorf("it has more than %d bytes", maxUserdata)
	}
	return string(text), nil
}

func withoutURL(err error) error {
	if located, ok := errors.AsType[*url.Error](err); ok {
		return located.Err
	}
	return err
}

// encode returns text as the provider shall get it.
func encode(text []byte, encoding string) ([]byte, error) {
	switch encoding {
	case "", config.EncodingPlain:
		return text, nil
	case config.EncodingBase64:
		return toBase64(text), nil
	case config.EncodingGzip:
		return toGzip(text)
	case config.EncodingGzipBase64:
		packed, err := toGzip(text)
		return toBase64(packed), err
	default:
		return nil, fmt.Errorf("unknown encoding of userdata %q", encoding)
	}
}

func toBase64(text []byte) []byte {
	return base64.StdEncoding.AppendEncode(nil, text)
}

func toGzip(text []byte) ([]byte, error) {
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err := writer.Write(text)
	if err := errors.Join(err, writer.Close()); err != nil {
		return nil, fmt.Errorf("packing userdata: %w", err)
	}
	return packed.Bytes(), nil
}
