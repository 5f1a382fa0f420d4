// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// templateWith returns a template "worker" with files, and a var role.
func templateWith(files, role string) string {
	return `{"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default",
		"vars": {"role": "` + role + `"}, "files": ` + files + `}}`
}

const allFiles = `{
	"app.env": {"kind": "env", "env": {"ROLE": "{{.Vars.role}}", "ID": "{{.Instance.ID}}", "HOST": "{{.Instance.Hostname}}"}},
	"app.json": {"kind": "json", "json": {"role": "{{.Vars.role}}", "replicas": 3, "on": true}},
	"text.json": {"kind": "string", "string": "[\"{{.Instance.IP4}}\"]"},
	"token.json": {"kind": "secret", "source": "app/token"},
	"object.json": {"kind": "storage", "source": "files/object"},
	"kubelet.crt": {"kind": "certificate", "template": "kubelet", "key": {"source": "agent", "name": "kubelet.server"}},
}`

const kubeletTemplate = `"kubelet": {"kind": "server", "cn": "system:node:{{.Instance.ID}}", "organization": ["system:nodes"],
	"dns": ["{{.Instance.Hostname}}", "{{if false}}x{{end}}"], "ip": ["{{.Instance.IP4}}"], "uri": ["spiffe://x/{{.Instance.ID}}"], "ttl": "30h"},`

// agentStreams are the streams of one agent.
type agentStreams struct {
	t       *testing.T
	id      string
	client  nstancev1.AgentServiceClient
	reports grpc.ClientStreamingClient[nstancev1.HealthReportRequest, emptypb.Empty]
	files   grpc.ServerStreamingClient[nstancev1.FileTransfer]
	keys    grpc.ServerStreamingClient[nstancev1.KeyGenerationRequest]
}

// openStreams registers an agent and opens its streams.
func openStreams(t *testing.T, s *servertest.Server, id string) *agentStreams {
	t.Helper()
	a := &agentStreams{t: t, id: id, client: s.RegisterAgent(id)}
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	t.Cleanup(cancel)
	var err error
	a.reports, err = a.client.SubmitHealthReport(ctx)
	require.NoError(t, err)
	a.files, err = a.client.ReceiveFiles(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	a.keys, err = a.client.ReceiveKeyRequests(ctx, &emptypb.Empty{})
	require.NoError(t, err)
	return a
}

func (a *agentStreams) report(hash string, files map[string]*nstancev1.FileStatus) {
	a.t.Helper()
	require.NoError(a.t, a.reports.Send(&nstancev1.HealthReportRequest{InstanceId: a.id, ConfigHash: hash, Files: files}))
}

// patch receives one patch: the contents by name, and the hash.
func (a *agentStreams) patch() (files map[string]string, hash string) {
	a.t.Helper()
	files = map[string]string{}
	for {
		transfer, err := a.files.Recv()
		require.NoError(a.t, err)
		if transfer.GetFilename() == "" {
			assert.Empty(a.t, transfer.GetContent())
			assert.Nil(a.t, transfer.GetLastModified())
			return files, transfer.GetConfigHash()
		}
		assert.Empty(a.t, transfer.GetConfigHash())
		assert.NotContains(a.t, files, transfer.GetFilename())
		assert.WithinDuration(a.t, time.Now(), transfer.GetLastModified().AsTime(), eventTimeout)
		files[transfer.GetFilename()] = string(transfer.GetContent())
	}
}

// untilKeyRequested receives one request for keys. The server ignores keys of an agent before
// it has the agent's streams.
func (a *agentStreams) untilKeyRequested() {
	a.t.Helper()
	request, err := a.keys.Recv()
	require.NoError(a.t, err)
	require.Equal(a.t, []string{"kubelet.server"}, request.GetKeyNames())
}

// sendKey answers one request for keys.
func (a *agentStreams) sendKey() ed25519.PublicKey {
	a.t.Helper()
	a.untilKeyRequested()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(a.t, err)
	der, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(a.t, err)
	_, err = a.client.SubmitPublicKeys(a.t.Context(), &nstancev1.PublicKeysRequest{InstanceId: a.id, Keys: []*nstancev1.PublicKeySubmission{
		{Filename: "kubelet.server", PublicKeyPem: []byte(base64.StdEncoding.EncodeToString(der))},
	}})
	require.NoError(a.t, err)
	return public
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	require.NoError(t, err)
	return data
}

// present returns the status of files that the agent has.
func present(files map[string]string) map[string]*nstancev1.FileStatus {
	status := map[string]*nstancev1.FileStatus{}
	for name := range files {
		status[name] = &nstancev1.FileStatus{Status: &nstancev1.FileStatus_LastModified{LastModified: timestamppb.Now()}}
	}
	return status
}

func startWithFiles(t *testing.T, size string) *servertest.Server {
	t.Helper()
	return startWithFilesAnd(t, withAgents(size))
}

func startWithFilesAnd(t *testing.T, o servertest.Options) *servertest.Server {
	t.Helper()
	o.Templates, o.Certificates = templateWith(allFiles, "worker"), kubeletTemplate
	s := servertest.Prepare(t, o)
	require.NoError(t, s.Secrets.Create(t.Context(), "app/token", []byte(`{"token": "hunter2"}`)))
	_, err := s.Storage.Create(t.Context(), "files/object", []byte(`{}`))
	require.NoError(t, err)
	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	return s
}

// auditLog returns the serial numbers in the audit log of the shard by instance and reason.
func auditLog(t *testing.T, s *servertest.Server) map[string]string {
	t.Helper()
	infos, err := s.Storage.List(t.Context(), "audit-log/us-west-2a/")
	require.NoError(t, err)
	serials := map[string]string{}
	for _, info := range infos {
		object, err := s.Storage.Get(t.Context(), info.Key)
		require.NoError(t, err)
		var entry auditlog.Entry
		require.NoError(t, json.Unmarshal(object.Data, &entry))
		assert.Equal(t, audit.IssueCertificate, entry.Action)
		assert.Equal(t, "default", entry.Tenant)
		serials[entry.Instance+" "+entry.Reason] = entry.Name
	}
	return serials
}

func TestAnAgentReceivesItsFiles(t *testing.T) {
	s := startWithFiles(t, "2")
	ids := untilInstances(t, s, 2)
	records := []string{string(marshal(t, recordOf(t, s, ids[0])))}
	a, other := openStreams(t, s, ids[0]), openStreams(t, s, ids[1])
	// Without a report, no files are sent.
	public := a.sendKey()
	a.report("", nil)
	files, hash := a.patch()
	other.sendKey()
	other.report(hash, nil)
	others, _ := other.patch()

	certificate := files["kubelet.crt"]
	delete(files, "kubelet.crt")
	assert.Equal(t, map[string]string{
		"app.env":     "HOST=machine\nID=" + ids[0] + "\nROLE=worker\n",
		"app.json":    "{\n  \"on\": true,\n  \"replicas\": 3,\n  \"role\": \"worker\"\n}\n",
		"text.json":   `["10.0.0.7"]`,
		"token.json":  `{"token": "hunter2"}`,
		"object.json": `{}`,
	}, files)
	assert.Contains(t, others["app.env"], "ID="+ids[1]+"\n", "the files of the other instance")
	assert.NotContains(t, others["app.env"], ids[0])

	block, _ := pem.Decode([]byte(certificate))
	require.NotNil(t, block)
	parsed, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	assert.True(t, public.Equal(parsed.PublicKey), "the certificate is for the key")
	assert.Equal(t, "system:node:"+ids[0], parsed.Subject.CommonName)
	assert.Equal(t, []string{"system:nodes"}, parsed.Subject.Organization)
	assert.Equal(t, []string{"machine"}, parsed.DNSNames)
	assert.Equal(t, "10.0.0.7", parsed.IPAddresses[0].String())
	_, err = parsed.Verify(x509.VerifyOptions{Roots: pkitest.Roots(s.Authority), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	assert.NoError(t, err)
	_, err = pki.PeerClient(parsed)
	assert.Error(t, err, "it is no client of the servers")
	issued := auditLog(t, s)
	serial := issued[ids[0]+" registration"]
	assert.NotEmpty(t, serial)
	delete(issued, ids[0]+" registration")
	delete(issued, ids[1]+" registration")
	delete(issued, ids[1]+" file")
	assert.Equal(t, map[string]string{ids[0] + " file": parsed.SerialNumber.Text(16)}, issued)
	assert.Equal(t, recordOf(t, s, ids[0]).Registration.CertSerial, serial)

	// A change is sent without a report.
	files["kubelet.crt"] = certificate
	a.report(hash, present(files))
	s.SetConfig(func(o *servertest.Options) { o.Templates = templateWith(allFiles, "changed") })
	changed, next := a.patch()
	assert.NotEqual(t, hash, next)
	assert.Contains(t, changed["app.env"], "ROLE=changed\n")
	assert.Len(t, changed, 6)
	// Neither the vars nor a secret are stored for the files.
	records = append(records, string(marshal(t, recordOf(t, s, ids[0]).Vars)))
	for _, text := range records {
		assert.NotContains(t, text, "hunter2")
	}
	_, metrics := s.Get("/metrics")
	assert.NotContains(t, metrics, "hunter2")
}

// TestFilesAreSentUntilTheAgentHasThem: files that are missing or in error are sent again
// later, and after a reconnection at once.
func TestFilesAreSentUntilTheAgentHasThem(t *testing.T) {
	s := startWithFiles(t, "1")
	id := untilInstances(t, s, 1)[0]
	a := openStreams(t, s, id)
	a.sendKey()
	a.report("", nil)
	files, hash := a.patch()

	again, err := a.client.ReceiveFiles(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	_, err = a.files.Recv()
	wantCode(t, "the older stream", err, codes.Aborted)
	a.files = again
	_, second := a.patch()
	assert.Equal(t, hash, second, "the report was from before the patch")
	a.report(hash, present(files))

	broken := present(files)
	broken["app.env"] = &nstancev1.FileStatus{Status: &nstancev1.FileStatus_Error{Error: "it was deleted"}}
	watch, err := s.Operator("default").WatchErrors(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(s.Calls("WatchErrors")) == 1 }, eventTimeout, time.Millisecond)
	a.report(hash, broken)
	failure, err := watch.Recv()
	require.NoError(t, err)
	assert.Contains(t, failure.GetError(), "file app.env of instance <instance>: it was deleted")
	assert.Equal(t, id, failure.GetInstanceId())
}

// TestRefusedFilesAreReportedAtOnce: operators get the reason with the report that has it,
// not only with the next patch.
func TestRefusedFilesAreReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := withAgents("1")
		o.InMemory = true
		s := startWithFilesAnd(t, o)
		a := openStreams(t, s, untilInstances(t, s, 1)[0])
		a.sendKey()
		watch, err := s.Operator("default").WatchErrors(t.Context(), &emptypb.Empty{})
		require.NoError(t, err)
		a.report("", nil)
		files, hash := a.patch()
		synctest.Wait()
		sent := time.Now()
		report := func(reason string) {
			status := present(files)
			status["app.env"] = &nstancev1.FileStatus{Status: &nstancev1.FileStatus_Error{Error: reason}}
			a.report(hash, status)
		}
		for _, reason := range []string{"first reason", "second reason"} {
			report(reason)
			failure, err := watch.Recv()
			require.NoError(t, err)
			assert.Contains(t, failure.GetError(), "file app.env of instance <instance>: "+reason)
		}
		// The time of the bubble passes only while everything waits.
		assert.Less(t, time.Since(sent), time.Second, "the next patch follows after 10 s")
		s.Stop()
	})
}

func TestPublicKeysOfAgents(t *testing.T) {
	s := startWithFiles(t, "1")
	a := openStreams(t, s, untilInstances(t, s, 1)[0])
	a.untilKeyRequested()
	curve, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&curve.PublicKey)
	require.NoError(t, err)
	for name, key := range map[string][]byte{
		"nothing": nil, "garbage": []byte("garbage!"), "no key": []byte(base64.StdEncoding.EncodeToString([]byte("x"))),
		"P-224": []byte(base64.StdEncoding.EncodeToString(der)), "P-224 as PEM": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}),
	} {
		_, err := a.client.SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: a.id, Keys: []*nstancev1.PublicKeySubmission{
			{Filename: "kubelet.server", PublicKeyPem: key},
		}})
		wantCode(t, name, err, codes.InvalidArgument)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err = x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	_, err = a.client.SubmitPublicKeys(t.Context(), &nstancev1.PublicKeysRequest{InstanceId: a.id, Keys: []*nstancev1.PublicKeySubmission{
		{Filename: "kubelet.server", PublicKeyPem: publicPEM}, {Filename: "not-needed", PublicKeyPem: []byte("garbage!")},
	}})
	wantCode(t, "one key of two", err, codes.InvalidArgument)
	a.report("", nil)
	files, _ := a.patch()
	block, _ := pem.Decode([]byte(files["kubelet.crt"]))
	require.NotNil(t, block)
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	assert.True(t, private.PublicKey.Equal(certificate.PublicKey), "the key that was accepted is signed, ECDSA as PEM")
}

// TestNoMachineGetsTheNameOfAServer: agents would take the machine for a server.
func TestNoMachineGetsTheNameOfAServer(t *testing.T) {
	o := withAgents("1")
	o.Templates, o.Certificates = templateWith(allFiles, "worker"), kubeletTemplate
	o.Advertise = `{"agent_addr": "10.0.0.7:1"}`
	s := servertest.Prepare(t, o)
	require.NoError(t, s.Secrets.Create(t.Context(), "app/token", []byte("{}")))
	_, err := s.Storage.Create(t.Context(), "files/object", []byte("{}"))
	require.NoError(t, err)
	s.Launch()
	s.UntilListening()
	s.UntilHealthy()
	watch, err := s.Operator("default").WatchErrors(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	a := openStreams(t, s, untilInstances(t, s, 1)[0])
	a.sendKey()
	a.report("", nil)
	failure, err := watch.Recv()
	require.NoError(t, err)
	assert.Contains(t, failure.GetError(), "the address 10.0.0.7 is that of a shard server")
}
