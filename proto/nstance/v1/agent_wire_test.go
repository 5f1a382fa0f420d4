// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstancev1_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// at is 2024-05-06T07:08:09.5Z.
var at = timestamppb.New(time.Unix(1714979289, 500000000))

// atBytes is at as the field with the number of a tag: the length is 12, the seconds are
// 1714979289 as a varint, the nanoseconds are 500000000 as one.
const atBytes = "0c 08d983e2b106 1080cab5ee01"

// agentMessages has each message between agents and servers and its bytes, written by hand:
// a tag is the number of the field times 8, plus 0 for a varint, 1 for 8 bytes or 2 for a
// length and as many bytes.
var agentMessages = map[string]struct {
	message proto.Message
	bytes   string
}{
	"RegisterClientRequest": {
		&nstancev1.RegisterClientRequest{RegistrationNonceJwt: "n", PublicKeyPem: []byte("k"), PrivateIpv4: "4", PrivateIpv6: "6", Hostname: "h"},
		"0a 01 6e  12 01 6b  1a 01 34  22 01 36  2a 01 68",
	},
	"RegisterClientResponse": {
		&nstancev1.RegisterClientResponse{ClientCertificatePem: []byte("c"), ExpiresAt: at},
		"0a 01 63  12" + atBytes,
	},
	"RenewCertificateRequest": {
		&nstancev1.RenewCertificateRequest{PublicKeyPem: []byte("k")},
		"0a 01 6b",
	},
	"RenewCertificateResponse": {
		&nstancev1.RenewCertificateResponse{ClientCertificatePem: []byte("c"), ExpiresAt: at},
		"0a 01 63  12" + atBytes,
	},
	"KeyGenerationRequest": {
		&nstancev1.KeyGenerationRequest{KeyNames: []string{"a", "", "b.c"}},
		"0a 01 61  0a 00  0a 03 622e63",
	},
	"PublicKeysRequest": {
		&nstancev1.PublicKeysRequest{InstanceId: "i", Keys: []*nstancev1.PublicKeySubmission{{Filename: "a"}, {Filename: "b"}}},
		"0a 01 69  12 03 0a0161  12 03 0a0162",
	},
	"PublicKeySubmission": {
		&nstancev1.PublicKeySubmission{Filename: "f", PublicKeyPem: []byte("k")},
		"0a 01 66  12 01 6b",
	},
	"HealthReportRequest": {
		&nstancev1.HealthReportRequest{
			Version:           "v",
			InstanceId:        "i",
			Timestamp:         at,
			Count:             300,
			Uptime:            "1s",
			Metrics:           &nstancev1.Metrics{},
			Files:             map[string]*nstancev1.FileStatus{"f": {Status: &nstancev1.FileStatus_Error{Error: "e"}}},
			TerminationNotice: &nstancev1.TerminationNotice{Action: "t"},
			ConfigHash:        "h",
		},
		"0a 01 76  12 01 69  1a" + atBytes + "20 ac02  2a 02 3173  32 00" +
			"3a 08 0a0166 1203120165  42 03 0a0174  4a 01 68",
	},
	"Metrics": {
		&nstancev1.Metrics{
			CpuUsage:              proto.Float64(1),
			CpuCoreUsage:          []float64{2, 0},
			MemoryUsage:           proto.Float64(0),
			NetworkInterface:      &nstancev1.InterfaceMetrics{},
			NetworkInterfaceError: proto.String(""),
			EbpfCounters:          map[uint32]uint64{443: 5},
			EbpfError:             proto.String("e"),
			ConntrackCount:        proto.Uint64(0),
			ConntrackMax:          proto.Uint64(262144),
			ConntrackError:        proto.String("c"),
		},
		"09 000000000000f03f  12 10 0000000000000040 0000000000000000  19 0000000000000000" +
			"22 00  2a 00  32 05 08bb03 1005  3a 01 65  40 00  48 808010  52 01 63",
	},
	"InterfaceMetrics": {
		&nstancev1.InterfaceMetrics{InterfaceName: "n", RxBytes: 1, TxBytes: 2, RxPackets: 3, TxPackets: 4, RxDrops: 5, TxDrops: 6},
		"0a 01 6e  10 01  18 02  20 03  28 04  30 05  38 06",
	},
	"FileStatus of a file that exists": {
		&nstancev1.FileStatus{Status: &nstancev1.FileStatus_LastModified{LastModified: at}},
		"0a" + atBytes,
	},
	"FileStatus of an error": {
		&nstancev1.FileStatus{Status: &nstancev1.FileStatus_Error{Error: "e"}},
		"12 01 65",
	},
	"TerminationNotice": {
		&nstancev1.TerminationNotice{Action: "stop", Deadline: at},
		"0a 04 73746f70  12" + atBytes,
	},
	"FileTransfer of a file": {
		&nstancev1.FileTransfer{Filename: "f", Content: []byte("c"), LastModified: at},
		"0a 01 66  12 01 63  1a" + atBytes,
	},
	"FileTransfer that ends a patch": {
		&nstancev1.FileTransfer{ConfigHash: "h"},
		"22 01 68",
	},
}

// An agent of another implementation can talk to our server, and ours to another server.
func TestMessagesOfAgentsHaveTheirBytes(t *testing.T) {
	for name, test := range agentMessages {
		t.Run(name, func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(test.bytes, " ", ""))
			require.NoError(t, err)
			got, err := proto.MarshalOptions{Deterministic: true}.Marshal(test.message)
			require.NoError(t, err)
			if string(got) != string(want) {
				t.Errorf("encoded as\n%x, want\n%x", got, want)
			}
			read := test.message.ProtoReflect().New().Interface()
			require.NoError(t, proto.Unmarshal(want, read))
			if !proto.Equal(read, test.message) {
				t.Errorf("decoded as\n%v, want\n%v", read, test.message)
			}
		})
	}
}

// Every message of the services for agents is in the table, whatever is added.
func TestEveryMessageOfAgentsHasBytes(t *testing.T) {
	messages := nstancev1.File_nstance_v1_agent_proto.Messages()
	for i := range messages.Len() {
		name := string(messages.Get(i).Name())
		found := false
		for tested := range agentMessages {
			found = found || tested == name || strings.HasPrefix(tested, name+" ")
		}
		if !found {
			t.Errorf("message %s has no bytes in the table", name)
		}
	}
}
