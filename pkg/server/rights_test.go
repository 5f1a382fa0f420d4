// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// right says who may make a call.
type right struct {
	// request names the objects of the tenant default.
	request proto.Message
	// other is the code for the operator of another tenant, or for the agent of another
	// instance. OK is an answer that shows nothing of the tenant default.
	other codes.Code
}

// rightsOf returns the rights for every call that a service has. id is an instance of
// the tenant default.
func rightsOf(id string) map[protoreflect.FullName]right {
	const main = "main-of-default"
	settings := &nstancev1.GroupConfig{Template: "worker", Size: 1}
	return map[protoreflect.FullName]right{
		"nstance.v1.RegistrationService.RegisterAgent":    {&nstancev1.RegisterClientRequest{RegistrationNonceJwt: "e30.e30.e30"}, codes.Unauthenticated},
		"nstance.v1.RegistrationService.RegisterOperator": {&nstancev1.RegisterClientRequest{RegistrationNonceJwt: "e30.e30.e30"}, codes.Unauthenticated},

		"nstance.v1.OperatorService.RenewCertificate":   {&nstancev1.RenewCertificateRequest{}, codes.InvalidArgument},
		"nstance.v1.OperatorService.GetConfigStatus":    {&emptypb.Empty{}, codes.OK},
		"nstance.v1.OperatorService.RefreshConfig":      {&emptypb.Empty{}, codes.OK},
		"nstance.v1.OperatorService.ListGroups":         {&emptypb.Empty{}, codes.OK},
		"nstance.v1.OperatorService.UpsertGroup":        {&nstancev1.UpsertGroupRequest{Key: main, Config: settings}, codes.InvalidArgument},
		"nstance.v1.OperatorService.DeleteGroup":        {&nstancev1.DeleteGroupRequest{Key: "nothing"}, codes.OK},
		"nstance.v1.OperatorService.CreateInstance":     {&nstancev1.CreateInstanceRequest{Config: &nstancev1.InstanceConfig{Group: main}}, codes.FailedPrecondition},
		"nstance.v1.OperatorService.DeleteInstance":     {&nstancev1.DeleteInstanceRequest{InstanceId: id}, codes.PermissionDenied},
		"nstance.v1.OperatorService.GetInstanceStatus":  {&nstancev1.GetInstanceStatusRequest{InstanceId: id}, codes.PermissionDenied},
		"nstance.v1.OperatorService.AcknowledgeDrained": {&nstancev1.DrainAckRequest{InstanceId: id}, codes.PermissionDenied},
		"nstance.v1.OperatorService.SleepTenant":        {&nstancev1.SleepTenantRequest{}, codes.Unimplemented},
		"nstance.v1.OperatorService.WakeTenant":         {&nstancev1.WakeTenantRequest{}, codes.Unimplemented},
		"nstance.v1.OperatorService.GetTenantStatus":    {&nstancev1.GetTenantStatusRequest{}, codes.Unimplemented},
		"nstance.v1.OperatorService.WatchGroups":        {&emptypb.Empty{}, codes.OK},
		"nstance.v1.OperatorService.WatchInstances":     {&emptypb.Empty{}, codes.OK},
		"nstance.v1.OperatorService.WatchErrors":        {&emptypb.Empty{}, codes.OK},

		"nstance.v1.AgentService.ReceiveKeyRequests": {&emptypb.Empty{}, codes.OK},
		"nstance.v1.AgentService.SubmitPublicKeys":   {&nstancev1.PublicKeysRequest{InstanceId: id}, codes.PermissionDenied},
		"nstance.v1.AgentService.SubmitHealthReport": {&nstancev1.HealthReportRequest{InstanceId: id}, codes.PermissionDenied},
		"nstance.v1.AgentService.ReceiveFiles":       {&emptypb.Empty{}, codes.OK},
		"nstance.v1.AgentService.RenewCertificate":   {&nstancev1.RenewCertificateRequest{}, codes.InvalidArgument},
	}
}

// TestRights makes every call of every service as every kind of client. A call that the table
// does not have fails the test.
func TestRights(t *testing.T) {
	const secret = "SECRET-OF-DEFAULT"
	s := servertest.Start(t, servertest.Options{
		Agents: true,
		Templates: `{
			"worker": {"kind": "knd", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default", "vars": {"join": "` + secret + `"}, "limits": {"on_demand": true}},
			"of-other": {"kind": "oth", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default"}}`,
		Groups: `{"default": {"main-of-default": {"template": "worker", "size": 1}}, "other": {"main": {"template": "of-other", "size": 1}}}`,
	})
	instanceOf := func(tenant string) string {
		event := watchGroups(t, s.Operator(tenant)).until(func(e *nstancev1.GroupEvent) bool {
			return len(e.Group.GetInstances().GetInstances()) == 1
		})
		return instanceIDs(event.Group)[0]
	}
	id, otherID := instanceOf("default"), instanceOf("other")
	callers := callersOf(t, s, id, otherID)
	rights := rightsOf(id)
	before := describe(t, s)

	methods := allMethods()
	for _, method := range methods {
		_, listed := rights[method.FullName()]
		assert.True(t, listed, "%s is not in the table", method.FullName())
	}
	assert.Len(t, methods, len(rights))
	for _, method := range methods {
		right := rights[method.FullName()]
		service := string(method.Parent().Name())
		expect := func(caller string, code codes.Code) {
			t.Helper()
			reply, err := callers[caller].call(t, service, method, right.request, code == codes.OK)
			assert.Equal(t, code, status.Code(err), "%s by %s: %v", method.FullName(), caller, err)
			for _, theirs := range []string{secret, id, "main-of-default"} {
				assert.NotContains(t, reply, theirs, "%s by %s", method.FullName(), caller)
			}
			assert.NotContains(t, status.Convert(err).Message(), secret, "%s by %s", method.FullName(), caller)
		}
		switch service {
		case "RegistrationService":
			expect("nobody", right.other)
		case "OperatorService":
			expect("nobody", codes.Unavailable)
			expect("agent", codes.PermissionDenied)
			expect("other operator", right.other)
		case "AgentService":
			expect("nobody", codes.Unavailable)
			expect("operator", codes.PermissionDenied)
			expect("other agent", right.other)
		}
	}
	assert.Equal(t, before, describe(t, s), "the tenant has changed")

	// The table would be worth nothing if nobody could make the calls. The operator is last,
	// because it deletes the instance.
	for _, own := range []struct{ service, caller string }{{"AgentService", "agent"}, {"OperatorService", "operator"}} {
		for _, method := range methods {
			if string(method.Parent().Name()) != own.service {
				continue
			}
			_, err := callers[own.caller].call(t, own.service, method, rights[method.FullName()].request, true)
			assert.NotContains(t, []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.Unavailable, codes.Internal}, status.Code(err),
				"%s by %s: %v", method.FullName(), own.caller, err)
		}
	}
}

// allMethods returns the methods of all services of the protocol.
func allMethods() []protoreflect.MethodDescriptor {
	var methods []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("nstance.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				methods = append(methods, service.Methods().Get(j))
			}
		}
		return true
	})
	return methods
}

// describe returns the groups of the tenant default.
func describe(t *testing.T, s *servertest.Server) string {
	t.Helper()
	list, err := s.Operator("default").ListGroups(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	return prototext.Format(list)
}

// caller has a connection to the listener of each service.
type caller map[string]*grpc.ClientConn

func callersOf(t *testing.T, s *servertest.Server, id, otherID string) map[string]caller {
	t.Helper()
	addresses := map[string]string{"RegistrationService": s.RegistrationAddr, "OperatorService": s.Addr, "AgentService": s.AgentAddr}
	with := func(certificates ...tls.Certificate) caller {
		c := caller{}
		for service, address := range addresses {
			conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithContextDialer(s.DialAddress), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
				MinVersion: tls.VersionTLS13, RootCAs: pkitest.Roots(s.Authority), ServerName: "localhost", Certificates: certificates,
			})))
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			c[service] = conn
		}
		return c
	}
	operator := func(tenant string) caller {
		certificate, key, err := s.Authority.IssueClient(pki.Client{ID: "rights", Tenant: tenant, Role: pki.RoleOperator}, time.Hour)
		require.NoError(t, err)
		pair, err := tls.X509KeyPair(certificate, key)
		require.NoError(t, err)
		return with(pair)
	}
	agent := func(id string) caller {
		key, keyPEM := s.AgentKey()
		response, err := registerAgent(t, s, s.Nonce(id), keyPEM)
		require.NoError(t, err)
		certificate, err := pki.ParseCertificate(response.GetClientCertificatePem())
		require.NoError(t, err)
		return with(tls.Certificate{Certificate: [][]byte{certificate.Raw}, PrivateKey: key})
	}
	return map[string]caller{
		"nobody": with(), "operator": operator("default"), "other operator": operator("other"), "agent": agent(id), "other agent": agent(otherID),
	}
}

// call makes a call and returns its first reply as text, or what it got until then. A stream
// without a message is open: a call that may be answered by silence does not wait for long.
func (c caller) call(t *testing.T, service string, method protoreflect.MethodDescriptor, request proto.Message, silence bool) (string, error) {
	t.Helper()
	timeout := time.Minute
	if silence && method.IsStreamingServer() {
		timeout = time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	name := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	stream, err := c[service].NewStream(ctx, &grpc.StreamDesc{StreamName: string(method.Name()), ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return "", err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	reply := newMessage(t, method.Output())
	err = stream.RecvMsg(reply)
	if status.Code(err) == codes.DeadlineExceeded && method.IsStreamingServer() && silence {
		return "", nil
	}
	return prototext.Format(reply), err
}

// newMessage returns an empty message of a generated type.
func newMessage(t *testing.T, of protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	found, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	require.NoError(t, err)
	return found.New().Interface()
}
