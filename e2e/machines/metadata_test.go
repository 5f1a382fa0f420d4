// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
)

// metadataRequest requests METHOD PATH HEADER at HOST PORT, in the network of the first
// process of a name, and prints the response.
const metadataRequest = `
process=$(pgrep -o -x "$1"); shift
exec nsenter --net="/proc/$process/ns/net" timeout 5 bash -c '
	exec 3<>"/dev/tcp/$4/$5"
	printf "%s %s HTTP/1.0\r\n%s\r\n\r\n" "$1" "$2" "$3" >&3
	cat <&3' request "$@"`

// requestMetadata returns the body of a response to a process of a node.
func requestMetadata(ctx context.Context, node, process, method, path, header, host, port string) (string, error) {
	command := exec.CommandContext(ctx, "docker", "--host", docker.Address, "exec", node,
		"bash", "-c", metadataRequest, "metadata", process, method, path, header, host, port)
	response, err := command.CombinedOutput()
	_, body, _ := strings.Cut(string(response), "\r\n\r\n")
	return body, err
}

// TestOnlyTheNodeHasMetadata: the userdata has contained a nonce, and the service identifies a
// node by its address, from which its Pods call other hosts too.
func TestOnlyTheNodeHasMetadata(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const (
		name    = "metadata"
		service = "169.254.169.254"
		put     = "/latest/api/token"
		ttl     = "X-aws-ec2-metadata-token-ttl-seconds: 60"
	)
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, 1)
	env.UntilRunning(t, name, 1)
	createDeployment(t, name, 1)
	untilAvailable(t, name, 1)
	node := pods(t.Context(), t, name)[0].Spec.NodeName

	token, err := requestMetadata(t.Context(), node, "kubelet", "PUT", put, ttl, service, "80")
	require.NoError(t, err, token)
	get := func(path string) string {
		body, err := requestMetadata(t.Context(), node, "kubelet", "GET", path, "X-aws-ec2-metadata-token: "+token, service, "80")
		require.NoError(t, err)
		return body
	}
	assert.Equal(t, node, get("/latest/meta-data/instance-id"))
	assert.Equal(t, name, get("/latest/meta-data/tags/instance/nstance:group"))
	assert.Contains(t, get("/latest/user-data"), "404", "the node has removed it after it ran")

	// Pods reach the service neither at the address of the nodes nor at its own.
	address := metadataAddress(t, node)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	for _, at := range [][2]string{{service, "80"}, {host, port}} {
		body, err := requestMetadata(t.Context(), node, "web", "PUT", put, ttl, at[0], at[1])
		assert.Error(t, err, "a Pod reached %v: %s", at, body)
	}
	// Without the rules of the node, the packets of a response do not get beyond it, while
	// other ports of this machine can be reached.
	flush(t, node)
	body, err := requestMetadata(t.Context(), node, "web", "PUT", put, ttl, host, port)
	assert.Error(t, err, "a Pod reached the service: %s", body)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") }))
	}()
	_, other, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	body, err = requestMetadata(t.Context(), node, "web", "PUT", put, ttl, host, other)
	assert.NoError(t, err)
	assert.Equal(t, "reached", body)
	assert.Equal(t, node, get("/latest/meta-data/instance-id"), "the node reaches it as before")
}

// metadataAddress returns the address of the metadata service that a node was configured with.
func metadataAddress(t *testing.T, node string) string {
	t.Helper()
	var variables []string
	output := runDocker(t, "inspect", "--format", "{{json .Config.Env}}", node)
	require.NoError(t, json.Unmarshal([]byte(output), &variables))
	for _, variable := range variables {
		if address, found := strings.CutPrefix(variable, "NSTANCE_METADATA_ADDR="); found {
			return address
		}
	}
	require.Fail(t, "node "+node+" has no metadata")
	return ""
}

// flush removes the rules by which a node forwards nothing to the service.
func flush(t *testing.T, node string) {
	t.Helper()
	assert.Contains(t, runDocker(t, "exec", node, "iptables", "-S", "FORWARD"), "-d 169.254.169.254/32 -j REJECT")
	runDocker(t, "exec", node, "iptables", "-F", "FORWARD")
}

// runDocker runs Docker's client and returns what it prints.
func runDocker(t testing.TB, arguments ...string) string {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "docker", append([]string{"--host", docker.Address}, arguments...)...).CombinedOutput()
	require.NoError(t, err, string(output))
	return string(output)
}
