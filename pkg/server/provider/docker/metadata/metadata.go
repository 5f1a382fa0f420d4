// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package metadata serves each instance its own metadata, as version 2 of the instance
// metadata service of AWS does (docs/providers.md#metadata-service). An instance is
// recognized by the address that it calls from.
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

// ErrUnknown is the error of an address that belongs to no instance, or to more than one.
var ErrUnknown = errors.New("the address belongs to no instance")

// Instance is one machine and what it may know about itself.
type Instance struct {
	// Machine identifies the machine: two machines that have had the same address differ in
	// it.
	Machine string
	// ID is that of the instance.
	ID string
	// Values are the entries of meta-data that do not change, by path.
	Values map[string]string
}

// Notice announces a termination.
type Notice struct {
	// Action is one of AWS: terminate, stop or hibernate.
	Action string
	// Time is when it happens.
	Time time.Time
}

// Source has the instances. It is used concurrently.
type Source interface {
	// Instance returns the one that has an address at the time of the call. The error
	// wraps ErrUnknown if that is not exactly one.
	Instance(ctx context.Context, address netip.Addr) (*Instance, error)
	// Userdata returns that of an instance, nil if there is none.
	Userdata(ctx context.Context, i *Instance) ([]byte, error)
	// Notice returns that of an instance, nil if there is none.
	Notice(i *Instance) (*Notice, error)
}

// service is the handler of all requests.
type service struct {
	source Source
	tokens tokens
}

// connection is the machine that a connection belongs to: an address may pass to another
// machine while a connection is open.
type connection struct {
	mu      sync.Mutex
	machine string
}

type connectionKey struct{}

// belongsTo reports whether the connection is one of a machine. The first request decides.
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
	// A proxy passes on requests of others.
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
		logger.Error(err, "Finding the instance of a request for metadata failed", "address", address.Addr())
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
		logger.Error(err, "Reading metadata failed", "instance", i.ID, "path", r.URL.Path)
		refuse(w, http.StatusInternalServerError)
	case !found:
		http.Error(w, "404 - Not Found", http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(content)
	}
}

// refuse responds with nothing but a status, and closes the connection.
func refuse(w http.ResponseWriter, code int) {
	w.Header().Set("Connection", "close")
	w.WriteHeader(code)
}

// Limits of clients: an instance needs one connection.
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
		// What clients do wrong is not logged.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// versions are the first folders of all paths. They have the same content. AWS has more of
// them; these are what cloud-init queries.
var versions = []string{"2009-04-04", "2016-09-02", "2018-09-24", "2021-03-23", "latest"}

// Paths in meta-data of a termination notice.
const (
	pathAction          = "spot/instance-action"
	pathTerminationTime = "spot/termination-time"
)

// actionTerminate is the action of a notice with a termination time.
const actionTerminate = "terminate"

// content returns what is at a path.
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

// values returns the entries of meta-data by path. Those of a notice exist only with one.
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

// lookUp returns a value, or the names in a folder, those of folders with a slash.
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

// Path and headers of tokens, as AWS has them.
const (
	tokenPath      = "/latest/api/token"
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	lifetimeHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
)

// maxLifetime is the longest life of a token, 6 hours.
const maxLifetime = 21600

// tokens issues tokens and checks them. A token is its expiry with a code of authentication
// that covers the machine too, so that nothing is stored. After a restart of the server
// the tokens of before are invalid.
type tokens struct {
	key [sha256.Size]byte
}

func newTokens() tokens {
	var t tokens
	// It never returns an error.
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

// serveToken issues a token for as long as the client wants.
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
