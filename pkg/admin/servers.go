// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/admin/identityfolder"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	serversEnv = "NSTANCE_ADMIN_SERVERS"
	shardEnv   = "NSTANCE_ADMIN_SHARD"

	timeoutFlag    = "timeout"
	timeoutUsage   = "how long the command may take"
	defaultTimeout = 30 * time.Second

	// maxReceivedBytes is the maximum size of a response. A list of all groups with their
	// provider ids is larger than the default of gRPC, 4 MiB
	// (https://pkg.go.dev/google.golang.org/grpc#MaxCallRecvMsgSize).
	maxReceivedBytes = 64 << 20
)

// shardOptions has the flags that select shards and the identity of the client.
type shardOptions struct {
	servers  string
	shard    string
	all      bool
	identity string
	timeout  time.Duration

	flags *pflag.FlagSet
}

func (o *shardOptions) addFlags(flags *pflag.FlagSet) {
	o.flags = flags
	flags.StringVar(&o.servers, "servers", os.Getenv(serversEnv), "addresses for operators, shard=host:port,...; environment variable "+serversEnv+" (required)")
	flags.StringVar(&o.shard, "shard", os.Getenv(shardEnv), "id of the only shard to call; environment variable "+shardEnv)
	flags.BoolVar(&o.all, "all-shards", false, "call all shards of --servers")
	flags.StringVar(&o.identity, identityfolder.Flag, os.Getenv(identityfolder.Env), identityfolder.Usage+" (required)")
	flags.DurationVar(&o.timeout, timeoutFlag, defaultTimeout, timeoutUsage)
}

// server is the address of the server of a shard.
type server struct {
	shard, address string
}

// targets returns the servers to call, in the order of --servers, or an error with all
// mistakes in the flags.
func (o *shardOptions) targets() ([]server, error) {
	var wrong mistakes
	servers, err := parseServers(o.servers)
	wrong.add("servers", err)
	shard := o.shard
	if o.all && !o.flags.Changed("shard") {
		// The environment variable applies only without flags.
		shard = ""
	}
	switch {
	case o.all && shard != "":
		wrong.addf("all-shards", "must not be given together with --shard %s", shard)
	case !o.all && shard == "":
		wrong.addf("shard", "exactly one of --shard and --all-shards must be given")
	case !o.all && err == nil:
		known := servers
		servers = slices.DeleteFunc(slices.Clone(servers), func(s server) bool { return s.shard != shard })
		if len(servers) == 0 {
			wrong.addf("shard", "%q is not among --servers, which has %s", shard, shardNames(known))
		}
	}
	if o.identity == "" {
		wrong.addf(identityfolder.Flag, "must be the folder with %s, %s and %s", identityfolder.AuthorityFile, identityfolder.CertificateFile, identityfolder.KeyFile)
	}
	if o.timeout <= 0 {
		wrong.addf(timeoutFlag, "%s must be greater than zero", o.timeout)
	}
	return servers, wrong.join()
}

func shardNames(servers []server) string {
	names := make([]string, 0, len(servers))
	for _, s := range servers {
		names = append(names, strconv.Quote(s.shard))
	}
	return strings.Join(names, ", ")
}

// parseServers parses shard=host:port,...
func parseServers(value string) ([]server, error) {
	if value == "" {
		return nil, errors.New("must be shard=host:port, several separated by commas")
	}
	var servers []server
	var wrong []error
	for entry := range strings.SplitSeq(value, ",") {
		shard, address, found := strings.Cut(entry, "=")
		if !found {
			wrong = append(wrong, fmt.Errorf("%q must be shard=host:port", entry))
			continue
		}
		if err := identifier.Validate(shard); err != nil {
			wrong = append(wrong, fmt.Errorf("%q: shard: %w", entry, err))
		}
		if err := validateAddress(address); err != nil {
			wrong = append(wrong, fmt.Errorf("%q: %w", entry, err))
		}
		if slices.ContainsFunc(servers, func(s server) bool { return s.shard == shard }) {
			wrong = append(wrong, fmt.Errorf("%q: shard %q is given twice", entry, shard))
		}
		servers = append(servers, server{shard: shard, address: address})
	}
	return servers, errors.Join(wrong...)
}

// shardAddresses returns the addresses of --servers by their shards.
func shardAddresses(value string) (map[string]string, error) {
	servers, err := parseServers(value)
	if err != nil {
		return nil, err
	}
	addresses := make(map[string]string, len(servers))
	for _, s := range servers {
		addresses[s.shard] = s.address
	}
	return addresses, nil
}

// validateAddress returns an error unless address is host:port.
func validateAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fmt.Errorf("address %q must be host:port, an IPv6 host in brackets", address)
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return fmt.Errorf("address %q must have a port from 1 to 65535", address)
	}
	return nil
}

// answer is the response of a server.
type answer[T any] struct {
	server
	value T
	// requestID is the request id of the calls to the server, for the audit trail.
	requestID string
}

// callEach concurrently calls the servers that the flags select. It returns the responses
// in the order of --servers, together with the errors of failed servers.
func callEach[T any](ctx context.Context, o *shardOptions, call func(context.Context, nstancev1.OperatorServiceClient) (T, error)) ([]answer[T], error) {
	servers, err := o.targets()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := identityfolder.Load(o.identity)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	values, errs, ids := make([]T, len(servers)), make([]error, len(servers)), make([]string, len(servers))
	var calls sync.WaitGroup
	for i, s := range servers {
		calls.Go(func() {
			connection, err := dial(s.address, tlsConfig)
			if err != nil {
				errs[i] = err
				return
			}
			defer func() { _ = connection.Close() }()
			named, id := audit.WithNewRequest(ctx)
			ids[i] = id
			values[i], errs[i] = call(audit.Outgoing(named), nstancev1.NewOperatorServiceClient(connection))
		})
	}
	calls.Wait()
	var answers []answer[T]
	for i, s := range servers {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("shard %s at %s: %w", s.shard, s.address, statusError(errs[i]))
			continue
		}
		answers = append(answers, answer[T]{server: s, value: values[i], requestID: ids[i]})
	}
	return answers, errors.Join(errs...)
}

// dial returns a connection, which connects at the first call.
func dial(address string, tlsConfig *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceivedBytes)))
}

// statusError returns the code and the message of a gRPC error.
func statusError(err error) error {
	if s, ok := status.FromError(err); ok {
		return fmt.Errorf("%s: %s", s.Code(), s.Message())
	}
	return err
}

func newConfigStatusCommand(options *shardOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show which configuration is in force",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			replies, err := callEach(command.Context(), options, func(ctx context.Context, client nstancev1.OperatorServiceClient) (*nstancev1.ConfigStatusResponse, error) {
				return client.GetConfigStatus(ctx, &emptypb.Empty{})
			})
			rows := newTable("SHARD", "ETAG", "BYTES", "MODIFIED")
			for _, a := range replies {
				modified := "unknown"
				if a.value.GetLastModified() != nil {
					modified = a.value.GetLastModified().AsTime().Format(time.RFC3339)
				}
				rows.add(a.shard, a.value.GetEtag(), strconv.FormatInt(a.value.GetSize(), 10), modified)
			}
			return errors.Join(err, rows.write(command))
		},
	}
}

func newConfigRefreshCommand(options *shardOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "refresh",
		Short: "Put the configuration in force if it has changed",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			replies, err := callEach(command.Context(), options, func(ctx context.Context, client nstancev1.OperatorServiceClient) (*nstancev1.RefreshConfigResponse, error) {
				return client.RefreshConfig(ctx, &emptypb.Empty{})
			})
			rows := newTable("SHARD", "UPDATED", "BEFORE", "ETAG")
			for _, a := range replies {
				rows.add(a.shard, strconv.FormatBool(a.value.GetUpdated()), a.value.GetPrevEtag(), a.value.GetEtag())
			}
			return errors.Join(err, rows.write(command))
		},
	}
}
