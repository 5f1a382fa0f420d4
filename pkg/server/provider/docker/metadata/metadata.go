// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package metadata serves each instance its own metadata, with the same interface as version
// 2 of AWS's instance metadata service (docs/providers.md#metadata-service,
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).
// It recognizes an instance by its address.
package metadata

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// ErrUnknown means that an address belongs to no instance, or to several.
var ErrUnknown = errors.New("the address belongs to no instance")

// Instance is an instance with its metadata.
type Instance struct {
	// Machine identifies the VM. Two VMs that have had the same address have different values.
	Machine string
	// ID is the instance id.
	ID string
	// Values are the constant entries of meta-data by path.
	Values map[string]string
}

// Notice announces a termination.
type Notice struct {
	// Action is terminate, stop or hibernate.
	Action string
	// Time is when the action happens.
	Time time.Time
}

// Source finds the instances. It must be safe for concurrent use.
type Source interface {
	// Instance returns the instance that has an address at the time of the call. The error
	// wraps ErrUnknown if no instance or several instances have it.
	Instance(ctx context.Context, address netip.Addr) (*Instance, error)
	// Userdata returns the userdata of an instance, or nil.
	Userdata(ctx context.Context, i *Instance) ([]byte, error)
	// Notice returns the notice of an instance, or nil.
	Notice(i *Instance) (*Notice, error)
}

// service handles all requests.
type service struct {
	source Source
	tokens tokens
}

// connection stores which VM a connection belongs to: an address may pass to another VM while
// a connection is open.
type connection struct {
	mu      sync.Mutex
	machine string
}

type connectionKey struct{}

// belongsTo reports whether the connection belongs to a VM. The first request decides.
func (c *connection) belongsTo(machine string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.machine == "" {
		c.machine = machine
	}
	return c.machine == machine
}

// ServeHTTP implements http.Handler.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	logger := klog.FromContext(r.Context())
	// A proxy forwards requests of other clients.
	if len(r.Header.Values("X-Forwarded-For")) > 0 {
		refuse(w, http.StatusForbidden)
		return
	}
	address, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		refuse(w, http.StatusForbidden)
		return
	}
	i, err := s.source.Instance(r.Context(), address.Addr().Unmap())
	switch {
	case errors.Is(err, ErrUnknown):
		logger.V(2).Info("Refused a request for metadata of an address that belongs to no instance", "address", address.Addr())
		refuse(w, http.StatusForbidden)
		return
	case err != nil:
		logger.Error(err, "Failed to find the instance of a request for metadata", "address", address.Addr())
		refuse(w, http.StatusServiceUnavailable)
		return
	}
	if c, ok := r.Context().Value(connectionKey{}).(*connection); !ok || !c.belongsTo(i.Machine) {
		refuse(w, http.StatusForbidden)
		return
	}
	if r.URL.Path == tokenPath {
		s.serveToken(w, r, i)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	if !s.tokens.valid(r.Header.Get(tokenHeader), i.Machine, time.Now()) {
		refuse(w, http.StatusUnauthorized)
		return
	}
	content, found, err := s.content(r.Context(), i, r.URL.Path)
	switch {
	case err != nil:
		logger.Error(err, "Failed to read metadata", "instance", i.ID, "path", r.URL.Path)
		refuse(w, http.StatusInternalServerError)
	case !found:
		http.Error(w, "404 - Not Found", http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(content)
	}
}

// refuse responds with a status only, and closes the connection.
func refuse(w http.ResponseWriter, code int) {
	w.Header().Set("Connection", "close")
	w.WriteHeader(code)
}

// Limits for clients: an instance needs one connection.
const (
	maxHeaderBytes = 16 << 10
	requestTimeout = 10 * time.Second
	idleTimeout    = time.Minute
)

// Serve serves the instances of a source until ctx is done, and closes the listener.
func Serve(ctx context.Context, listener net.Listener, source Source) error {
	server := &http.Server{
		Handler:           &service{source: source, tokens: newTokens()},
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      2 * requestTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, &connection{})
		},
		// Mistakes of clients are not logged.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// versions are the versions in paths that cloud-init queries. All have the same content
// (https://cloudinit.readthedocs.io/en/latest/reference/datasources/ec2.html).
var versions = []string{"2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "latest"}

// Paths of a termination notice in meta-data.
const (
	pathAction          = "spot/instance-action"
	pathTerminationTime = "spot/termination-time"
)

// actionTerminate is the action of a notice that also has a termination time.
const actionTerminate = "terminate"

// content returns the content of a path.
func (s *service) content(ctx context.Context, i *Instance, path string) (content []byte, found bool, err error) {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		return []byte(strings.Join(versions, "\n")), true, nil
	}
	version, path, _ := strings.Cut(path, "/")
	if !slices.Contains(versions, version) {
		return nil, false, nil
	}
	switch category, rest, _ := strings.Cut(path, "/"); category {
	case "":
		return []byte("meta-data\nuser-data"), true, nil
	case "user-data":
		if rest != "" {
			return nil, false, nil
		}
		content, err = s.source.Userdata(ctx, i)
		return content, content != nil, err
	case "meta-data":
		values, err := s.values(i)
		if err != nil {
			return nil, false, err
		}
		text, found := lookUp(values, rest)
		return []byte(text), found, nil
	default:
		return nil, false, nil
	}
}

// values returns the entries of meta-data by path, including the entries of a notice.
func (s *service) values(i *Instance) (map[string]string, error) {
	notice, err := s.source.Notice(i)
	if err != nil || notice == nil {
		return i.Values, err
	}
	values := maps.Clone(i.Values)
	at := notice.Time.UTC().Format(time.RFC3339)
	action, err := json.Marshal(struct {
		Action string `json:"action"`
		Time   string `json:"time"`
	}{notice.Action, at})
	if err != nil {
		return nil, fmt.Errorf("encode the notice of instance %s: %w", i.ID, err)
	}
	values[pathAction] = string(action)
	if notice.Action == actionTerminate {
		values[pathTerminationTime] = at
	}
	return values, nil
}

// lookUp returns the value of an entry, or the names in a folder. Names of folders end with
// a slash.
func lookUp(values map[string]string, path string) (text string, found bool) {
	if value, found := values[path]; found {
		return value, true
	}
	folder := strings.TrimSuffix(path, "/")
	if folder != "" {
		folder += "/"
	}
	names := map[string]bool{}
	for entry := range values {
		if name, ok := strings.CutPrefix(entry, folder); ok {
			first, _, isFolder := strings.Cut(name, "/")
			if isFolder {
				first += "/"
			}
			names[first] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), "\n"), len(names) > 0
}

// Path and headers of the token request
// (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html).
const (
	tokenPath      = "/latest/api/token"
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	lifetimeHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
)

// maxLifetime is the longest lifetime of a token, in seconds.
const maxLifetime = 21600

// tokens issues and checks tokens. A token is its expiry and a message authentication code
// that also covers the VM, so tokens need no storage. A restart of the server invalidates
// all tokens.
type tokens struct {
	key [sha256.Size]byte
}

func newTokens() tokens {
	var t tokens
	// crypto/rand.Read never returns an error (https://pkg.go.dev/crypto/rand#Read).
	_, _ = rand.Read(t.key[:])
	return t
}

func (t *tokens) issue(machine string, expiry time.Time) string {
	token := binary.BigEndian.AppendUint64(nil, uint64(expiry.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(token, t.code(machine, token)...))
}

func (t *tokens) valid(token, machine string, now time.Time) bool {
	decoded, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(decoded) != 8+sha256.Size {
		return false
	}
	expiry, code := decoded[:8], decoded[8:]
	return hmac.Equal(code, t.code(machine, expiry)) && now.Unix() < int64(binary.BigEndian.Uint64(expiry))
}

func (t *tokens) code(machine string, expiry []byte) []byte {
	code := hmac.New(sha256.New, t.key[:])
	code.Write(expiry)
	_, _ = io.WriteString(code, machine)
	return code.Sum(nil)
}

// serveToken issues a token with the lifetime that the client requests.
func (s *service) serveToken(w http.ResponseWriter, r *http.Request, i *Instance) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", "OPTIONS, PUT")
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	lifetime, err := strconv.Atoi(r.Header.Get(lifetimeHeader))
	if err != nil || lifetime < 1 || lifetime > maxLifetime {
		refuse(w, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set(lifetimeHeader, strconv.Itoa(lifetime))
	_, _ = io.WriteString(w, s.tokens.issue(i.Machine, time.Now().Add(time.Duration(lifetime)*time.Second)))
}
