// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"nstance.dev/operator/pkg/base/identifier"
)

// Options are the settings of the agent. Each is a flag, and an environment variable of the
// same name with the prefix NSTANCE_.
type Options struct {
	// RegistrationAddress and AgentAddress are the two addresses of the server, host:port.
	RegistrationAddress, AgentAddress string
	// ServerURI is the URI that the server's certificate must have, nstance://CLUSTER/SHARD. If
	// it is empty, every server of the CA is accepted.
	ServerURI string
	// InstanceID is the id of the instance that runs on this machine.
	InstanceID string

	// IdentityFolder has the identity, KeysFolder the keys that the server requests, and
	// ReceiveFolder the files that it sends.
	IdentityFolder, KeysFolder, ReceiveFolder string
	// IdentityMode, KeysMode and ReceiveMode are the modes of the files in these folders.
	IdentityMode, KeysMode, ReceiveMode Mode

	// InstanceHostname, InstanceIPv4 and InstanceIPv6 are reported to the server at the
	// registration. The default of InstanceHostname is the name of the machine. If an
	// address is empty, the server uses the address that the provider reports.
	InstanceHostname, InstanceIPv4, InstanceIPv6 string
	// Environment, InstanceKind and InstanceFQDN are only logged.
	Environment, InstanceKind, InstanceFQDN string

	// ReportInterval is the time between two reports, 0 for no reports.
	ReportInterval time.Duration
	// ReadyFile is a file that exists, and ReadyURL a URL that answers with a status of 2xx, once
	// the machine is ready for what it is for. If both are empty, it is ready when it has
	// reported.
	ReadyFile, ReadyURL string
	// MetricsInterface is the network interface whose counters are reported; empty to
	// report no interface.
	MetricsInterface string
	// EBPFCountersPath is accepted for compatibility with other agents. This agent reports
	// that it does not read the counters.
	EBPFCountersPath string

	// Provider is the cloud whose metadata service announces terminations, aws, google or azure,
	// and has the signed identity of the machine, aws or google.
	Provider string
	// MetadataURL is the base URL of the metadata service; empty for the address of the
	// clouds.
	MetadataURL string
	// SpotPollInterval is the time between two polls for termination notices.
	SpotPollInterval time.Duration

	// HealthAddress serves /healthz, /readyz and /metrics; empty to serve nothing.
	HealthAddress string
	// Debug raises the verbosity of the log to 4.
	Debug bool
}

// DefaultOptions returns the options without flags and environment variables.
func DefaultOptions() *Options {
	return &Options{
		IdentityFolder:   "/opt/nstance-agent/identity",
		KeysFolder:       "/opt/nstance-agent/keys",
		ReceiveFolder:    "/opt/nstance-agent/recv",
		IdentityMode:     0o600,
		KeysMode:         0o640,
		ReceiveMode:      0o640,
		ReportInterval:   time.Minute,
		SpotPollInterval: 2 * time.Second,
	}
}

// AddFlags adds a flag for every option.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.RegistrationAddress, "server-registration-addr", o.RegistrationAddress, "address at which the server registers instances, host:port (required)")
	flags.StringVar(&o.AgentAddress, "server-agent-addr", o.AgentAddress, "address of the server for agents, host:port (required)")
	flags.StringVar(&o.ServerURI, "server-uri", o.ServerURI, "URI that the certificate of the server must have, nstance://CLUSTER/SHARD; empty to accept each server of the CA")
	flags.StringVar(&o.InstanceID, "instance-id", o.InstanceID, "id of the instance that runs on this machine (required)")
	flags.StringVar(&o.IdentityFolder, "identity-dir", o.IdentityFolder, "folder of the CA, the nonce, the key and the certificate of the instance")
	flags.StringVar(&o.KeysFolder, "keys-dir", o.KeysFolder, "folder of the keys that the server requests")
	flags.StringVar(&o.ReceiveFolder, "recv-dir", o.ReceiveFolder, "folder of the files that the server sends")
	flags.Var(&o.IdentityMode, "identity-mode", "mode of files in the folder of the identity")
	flags.Var(&o.KeysMode, "keys-mode", "mode of files in the folder of the keys")
	flags.Var(&o.ReceiveMode, "recv-mode", "mode of files in the folder of received files")
	flags.StringVar(&o.InstanceHostname, "instance-hostname", o.InstanceHostname, "host name of this machine; empty for the one that it has")
	flags.StringVar(&o.InstanceIPv4, "instance-ipv4", o.InstanceIPv4, "private IPv4 address; empty for the one that the provider reports")
	flags.StringVar(&o.InstanceIPv6, "instance-ipv6", o.InstanceIPv6, "private IPv6 address; empty for the one that the provider reports")
	flags.StringVar(&o.InstanceFQDN, "instance-fqdn", o.InstanceFQDN, "full name of this machine, for logs")
	flags.StringVar(&o.InstanceKind, "instance-kind", o.InstanceKind, "kind of the instance, for logs")
	flags.StringVar(&o.Environment, "environment", o.Environment, "name of the environment, for logs")
	flags.DurationVar(&o.ReportInterval, "report-interval", o.ReportInterval, "time between two health reports; 0 for none")
	flags.StringVar(&o.ReadyFile, "ready-file", o.ReadyFile, "file that exists once the machine is ready; empty if there is none")
	flags.StringVar(&o.ReadyURL, "ready-url", o.ReadyURL, "URL that answers with a status of 2xx once the machine is ready; empty if there is none")
	flags.StringVar(&o.MetricsInterface, "metrics-interface", o.MetricsInterface, "network interface whose counters are reported; empty for none")
	flags.StringVar(&o.EBPFCountersPath, "ebpf-counters-path", o.EBPFCountersPath, "accepted for compatibility: this agent reads no counters of connections")
	flags.StringVar(&o.Provider, "provider", o.Provider, "cloud of the machine, aws, google or azure: its termination notices are reported, and the identity that it signs is sent at the registration")
	flags.StringVar(&o.MetadataURL, "metadata-url", o.MetadataURL, "base URL of the metadata service; empty for that of the provider")
	flags.DurationVar(&o.SpotPollInterval, "spot-poll-interval", o.SpotPollInterval, "time between two polls for termination notices")
	flags.StringVar(&o.HealthAddress, "health-addr", o.HealthAddress, "address that serves /healthz, /readyz and /metrics; empty for none")
	flags.BoolVar(&o.Debug, "debug", o.Debug, "log more")
}

// Validate returns an error with every wrong option, each with the name of its flag.
func (o *Options) Validate() error {
	var wrong []error
	refuse := func(flag string, err error) {
		if err != nil {
			wrong = append(wrong, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	refuse("server-registration-addr", validateAddress(o.RegistrationAddress))
	refuse("server-agent-addr", validateAddress(o.AgentAddress))
	if parsed, err := url.Parse(o.ServerURI); o.ServerURI != "" && (err != nil || parsed.Scheme != identifier.ServerScheme || parsed.Host == "" || parsed.Path == "") {
		refuse("server-uri", fmt.Errorf("%q must be of the form nstance://CLUSTER/SHARD", o.ServerURI))
	}
	refuse("instance-id", identifier.Validate(o.InstanceID))
	for flag, folder := range map[string]string{"identity-dir": o.IdentityFolder, "keys-dir": o.KeysFolder, "recv-dir": o.ReceiveFolder} {
		if folder == "" {
			refuse(flag, errors.New("must not be empty"))
		}
	}
	for flag, address := range map[string]string{"instance-ipv4": o.InstanceIPv4, "instance-ipv6": o.InstanceIPv6} {
		if parsed, err := netip.ParseAddr(address); address != "" && (err != nil || parsed.Is4() != (flag == "instance-ipv4") || parsed.Zone() != "") {
			refuse(flag, fmt.Errorf("%q is not such an address, without a zone", address))
		}
	}
	if o.ReadyFile != "" && o.ReadyURL != "" {
		refuse("ready-url", errors.New("must not be set together with --ready-file"))
	}
	if parsed, err := url.Parse(o.ReadyURL); o.ReadyURL != "" && (err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https") {
		refuse("ready-url", errors.New("it must begin with http:// or https:// and have a host"))
	}
	if o.ReportInterval < 0 {
		refuse("report-interval", fmt.Errorf("%s must not be negative", o.ReportInterval))
	}
	if o.SpotPollInterval <= 0 {
		refuse("spot-poll-interval", fmt.Errorf("%s must be more than 0", o.SpotPollInterval))
	}
	if parsed, err := url.Parse(o.MetadataURL); o.MetadataURL != "" && (err != nil || parsed.Host == "") {
		refuse("metadata-url", errors.New("it is not a URL with a host"))
	}
	return errors.Join(wrong...)
}

func validateAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fmt.Errorf("%q must be of the form host:port", address)
	}
	if number, err := strconv.Atoi(port); err != nil || number < 1 || number > 65535 {
		return fmt.Errorf("port of %q must be between 1 and 65535", address)
	}
	return nil
}

// Mode is a file mode that is given as an octal flag, such as 0640.
type Mode fs.FileMode

// FileMode returns the mode.
func (m Mode) FileMode() fs.FileMode { return fs.FileMode(m) }

// String implements pflag.Value.
func (m *Mode) String() string { return fmt.Sprintf("%04o", uint32(*m)) }

// Type implements pflag.Value.
func (m *Mode) Type() string { return "mode" }

// Set implements pflag.Value. The owner, who is the agent, must be able to read and write.
func (m *Mode) Set(text string) error {
	value, err := strconv.ParseUint(text, 8, 32)
	if err != nil || value > 0o777 {
		return fmt.Errorf("%q is not an octal mode such as 0640", text)
	}
	if value&0o600 != 0o600 {
		return fmt.Errorf("mode %s must let the owner read and write", text)
	}
	*m = Mode(value)
	return nil
}
