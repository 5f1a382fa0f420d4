// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/registration"
)

// userdata returns the rendered userdata of the instance. If the group has no userdata, it
// returns nil and signs no nonce.
func (p *Provisioner) userdata(ctx context.Context, c *config.Config, group *groups.Group, record *instance.Record, facts facts) ([]byte, error) {
	if group.Userdata == (config.Userdata{}) {
		return nil, nil
	}
	secret := secretFacts{facts: facts}
	var err error
	secret.Nonce, err = p.Nonces.Agent(registration.AgentNonce{
		InstanceID: record.ID,
		ClusterID:  facts.Cluster.ID,
		Tenant:     record.Tenant,
		Shard:      facts.Server.Shard,
		Group:      record.Group,
		OnDemand:   record.OnDemand,
		ConfigHash: group.RuntimeConfigHash,

		RegistrationTimeout: c.Shard.GarbageCollection.RegistrationTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("sign the registration nonce: %w", err)
	}
	source := []byte(group.Userdata.Inline)
	if group.Userdata.URL != "" {
		if source, err = p.fetch(ctx, group.Userdata); err != nil {
			return nil, fmt.Errorf("fetch the userdata of template %q: %w", group.Template, err)
		}
	}
	parsed, err := group.Userdata.Template(source)
	if err != nil {
		return nil, fmt.Errorf("the userdata of template %q %w", group.Template, err)
	}
	rendered, err := execute(parsed, secret)
	if err != nil {
		return nil, fmt.Errorf("render the userdata of template %q: %w", group.Template, withoutText(err))
	}
	// Without id and nonce the agent cannot register.
	if !strings.Contains(rendered, record.ID) || !strings.Contains(rendered, secret.Nonce) {
		return nil, fmt.Errorf("the userdata of template %q must contain {{.Instance.ID}} and {{.Nonce}}", group.Template)
	}
	if err := checkForm(rendered); err != nil {
		return nil, fmt.Errorf("the userdata of template %q %w", group.Template, err)
	}
	return []byte(rendered), nil
}

// Errors of text/template have a position and quote the template. Only the name of a missing
// value is kept: the rest may contain a secret.
var (
	position = regexp.MustCompile(`^template: \w+:\d+:\d+`)
	missing  = regexp.MustCompile(`>: (?:map has no entry for key "\w+"|can't evaluate field \w+)`)
)

func withoutText(err error) error {
	text := err.Error()
	where := strings.TrimPrefix(position.FindString(text), "template: ")
	why := strings.TrimPrefix(missing.FindString(text), ">: ")
	return fmt.Errorf("%s: %s", where, cmp.Or(why, "this has no value"))
}

const (
	// fetchTimeout bounds fetching userdata from a URL, including the response.
	fetchTimeout = 10 * time.Second
	// maxPages is the maximum number of cached contents, each of at most config.MaxUserdata
	// bytes.
	maxPages = 16
)

// page is the content of a URL.
type page struct {
	content []byte
	// etag is empty if the content cannot be requested conditionally.
	etag string
}

// pages are the contents that were fetched last and have an etag.
type pages struct {
	mu    sync.Mutex
	byURL map[string]page
	// urls are the keys, ordered by their latest change.
	urls []string
}

func (p *pages) get(url string) (page, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, found := p.byURL[url]
	return known, found
}

// put replaces the content of a URL, and removes the oldest content if there are too many.
func (p *pages) put(url string, content page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byURL == nil {
		p.byURL = map[string]page{}
	}
	delete(p.byURL, url)
	p.urls = slices.DeleteFunc(p.urls, func(other string) bool { return other == url })
	if content.etag == "" {
		return
	}
	if len(p.urls) == maxPages {
		delete(p.byURL, p.urls[0])
		p.urls = p.urls[1:]
	}
	p.byURL[url] = content
	p.urls = append(p.urls, url)
}

// fetch returns the unchanged content of the URL. It is requested each time, but sent only if
// it has changed since the last request. The error contains only the host of the URL, whose
// other parts may include a password or a signature.
func (p *Provisioner) fetch(ctx context.Context, userdata config.Userdata) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, userdata.URL, nil)
	if err != nil {
		return nil, withoutURL(err)
	}
	// Otherwise the HTTP client would unpack gzip (https://pkg.go.dev/net/http#Transport),
	// which the configuration declares as the encoding of the userdata.
	request.Header.Set("Accept-Encoding", "identity")
	known, found := p.pages.get(userdata.URL)
	if found {
		request.Header.Set("If-None-Match", known.etag)
	}
	client := *p.client
	if userdata.SHA256 == "" {
		client.CheckRedirect = sameHost
	}
	source, err := get(&client, request, known)
	if err == nil {
		err = userdata.Check(source.content)
	}
	if err != nil {
		return nil, fmt.Errorf("from %s: %w", request.URL.Host, withoutURL(err))
	}
	p.pages.put(userdata.URL, source)
	return source.content, nil
}

// maxRedirects is the maximum number of redirects, as of net/http
// (https://pkg.go.dev/net/http#Client).
const maxRedirects = 10

// sameHost refuses redirects for content that is not checked: the configuration trusts the host of
// the URL alone, and over TLS if it begins with https.
func sameHost(request *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) >= maxRedirects:
		return fmt.Errorf("there are more than %d redirects", maxRedirects)
	case request.URL.Host != first.Host:
		return fmt.Errorf("a redirect to another host, %s, is followed only if the configuration has the sha256 of the userdata", request.URL.Host)
	case first.Scheme == "https" && request.URL.Scheme != "https":
		return fmt.Errorf("a redirect from https to %s is followed only if the configuration has the sha256 of the userdata", request.URL.Scheme)
	}
	return nil
}

func get(client *http.Client, request *http.Request, known page) (page, error) {
	response, err := client.Do(request)
	if err != nil {
		return page{}, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotModified && known.etag != "" {
		return known, nil
	}
	if response.StatusCode != http.StatusOK {
		return page{}, fmt.Errorf("the response is %s", response.Status)
	}
	source, err := io.ReadAll(io.LimitReader(response.Body, config.MaxUserdata+1))
	if err != nil {
		return page{}, err
	}
	if len(source) > config.MaxUserdata {
		return page{}, fmt.Errorf("it has more than %d bytes", config.MaxUserdata)
	}
	return page{content: source, etag: response.Header.Get("ETag")}, nil
}

func withoutURL(err error) error {
	if located, ok := errors.AsType[*url.Error](err); ok {
		return located.Err
	}
	return err
}
