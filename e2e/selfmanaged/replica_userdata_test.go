// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package selfmanaged

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/docker"
	"nstance.dev/operator/pkg/server/provision"
)

// replicaPrograms replace what userdata of a replicated control plane call. The API server is ready if the file
// ready exists. The folder nodes has Nodes and their shards, and members the members of etcd, reachable and
// unhealthy hosts; a host in the folder returns is reachable after a pause between checks. When kubeadm joins,
// the machine of a host in the folder leaves ends. After eight pauses the API server is ready, no host is
// unhealthy, and the fourth member left.
const replicaPrograms = `#!/bin/sh
echo "${0##*/} $*" >>"$MACHINE/calls"
case "${0##*/} $*" in
"ip "*) echo "2: eth0    inet 172.17.0.5/16 brd 172.17.255.255 scope global eth0" ;;
"sleep 1") [ "$(grep -c '^sleep 1$' "$MACHINE/calls")" -lt 8 ] || { : >"$MACHINE/ready"; rm -rf "$MACHINE/unhealthy" "$MACHINE/members/4"; } ;;
"sleep 2") for host in "$MACHINE"/returns/*; do : >"$MACHINE/reachable/${host##*/}"; done ;;
*"get --raw /readyz") [ -e "$MACHINE/ready" ] ;;
*"get endpointslice"*) printf https://172.17.0.2:2379,https://172.17.0.3:2379, ;;
*" get node "*) for name; do [ ! -e "$MACHINE/nodes/$name" ] || printf %s "$name@$(cat "$MACHINE/nodes/$name")"; done ;;
*" member list") cat "$MACHINE"/members/* ;;
*" member remove "*) for id; do :; done; rm "$MACHINE/members/$id" ;;
*" endpoint health") for host in "$MACHINE"/unhealthy/*; do case "$*" in *"/${host##*/}:"*) exit 1 ;; esac; done ;;
"timeout "*) for host in "$MACHINE"/reachable/*; do case "$*" in *"/${host##*/}/"*) exit 0 ;; esac; done; exit 1 ;;
"kubeadm join "*) echo "5, started, knd1, https://172.17.0.5:2380, https://172.17.0.5:2379, false" >"$MACHINE/members/5"; for host in "$MACHINE"/leaves/*; do rm -f "$MACHINE/reachable/${host##*/}"; done ;;
*--dry-run*) echo object ;;
*" -f -") cat >/dev/null ;;
esac
`

// newReplica returns a machine of shard self-a, in whose cluster members are reachable, healthy and Nodes of
// the shards self-a, self-b and self-c.
func newReplica(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	m.initializeBefore = "0"
	for _, name := range []string{"ip", "kubeadm", "kubectl", "ctr", "sleep", "etcdctl", "timeout"} {
		m.write(t, "bin/"+name, replicaPrograms)
		require.NoError(t, os.Chmod(filepath.Join(m.dir, "bin", name), 0o755))
	}
	for _, name := range append(sharedKeys(), "bootstrap.crt") {
		m.write(t, "opt/nstance-agent/recv/"+name, "received "+name+"\n")
	}
	m.write(t, "ready", "")
	for _, id := range []string{"1", "2", "3"} {
		m.addMember(t, id, "started, cpl"+id, "false")
		m.write(t, "nodes/cpl"+id, "self-"+string("abc"[id[0]-'1']))
		m.write(t, "reachable/172.17.0."+id, "")
	}
	return m
}

func (m *machine) addMember(t *testing.T, id, name, learner string) {
	t.Helper()
	url := "https://172.17.0." + id
	m.write(t, "members/"+id, id+", "+name+", "+url+":2380, "+url+":2379, "+learner+"\n")
}

func (m *machine) remove(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(m.dir, name)))
}

// changes returns the calls of kubeadm and those that change etcd.
func (m *machine) changes() []string {
	var changes []string
	for _, call := range m.ran {
		_, removed, found := strings.Cut(call, " member remove ")
		_, leader, moved := strings.Cut(call, " move-leader ")
		switch {
		case found:
			changes = append(changes, "remove "+removed)
		case moved:
			changes = append(changes, "leader "+leader)
		case strings.HasPrefix(call, "kubeadm init --config"):
			changes = append(changes, "init")
		case strings.HasPrefix(call, "kubeadm join"):
			changes = append(changes, "join")
		}
	}
	return changes
}

// What a machine does depends on what it finds: it never initializes a second cluster, and removes only members
// whose machines are gone.
func TestUserdataOfAReplicatedControlPlane(t *testing.T) {
	const later = "99999999999"
	for name, tc := range map[string]struct {
		prepare func(*testing.T, *machine)
		want    []string
	}{
		"the first machine initializes the cluster": {func(t *testing.T, m *machine) {
			m.remove(t, "ready")
			m.initializeBefore = later
		}, []string{"init"}},
		"no machine initializes a cluster after the time for it": {func(t *testing.T, m *machine) {
			m.remove(t, "ready")
			m.remove(t, "members/1")
		}, []string{"join"}},
		"the first machine joins if an API server is ready": {func(t *testing.T, m *machine) {
			m.initializeBefore = later
			m.remove(t, "members/1")
		}, []string{"join"}},
		"the member of the machine that is replaced": {func(t *testing.T, m *machine) {
			m.remove(t, "reachable/172.17.0.1")
		}, []string{"remove 1", "join"}},
		"a member whose Node was deleted": {func(t *testing.T, m *machine) {
			m.remove(t, "reachable/172.17.0.2")
			m.remove(t, "nodes/cpl2")
			m.remove(t, "members/1")
		}, []string{"remove 2", "join"}},
		"not a member that does not respond, with a Node of another shard": {func(t *testing.T, m *machine) {
			m.remove(t, "reachable/172.17.0.2")
			m.remove(t, "members/1")
		}, []string{"join"}},
		"not a member without a Node that responds": {func(t *testing.T, m *machine) {
			m.remove(t, "nodes/cpl2")
			m.remove(t, "members/1")
		}, []string{"join"}},
		"not a member that responds at the next check": {func(t *testing.T, m *machine) {
			m.remove(t, "reachable/172.17.0.2")
			m.remove(t, "nodes/cpl2")
			m.remove(t, "members/1")
			m.write(t, "returns/172.17.0.2", "")
		}, []string{"join"}},
		"not a member that responds and is not healthy": {func(t *testing.T, m *machine) {
			m.write(t, "unhealthy/172.17.0.1", "")
			m.write(t, "leaves/172.17.0.1", "")
		}, []string{"join", "leader 5", "remove 1"}},
		"in a rotation, the member of the other machine when it has left": {func(t *testing.T, m *machine) {
			m.write(t, "leaves/172.17.0.1", "")
		}, []string{"join", "leader 5", "remove 1"}},
		"a learner whose machine is gone": {func(t *testing.T, m *machine) {
			m.remove(t, "members/1")
			m.addMember(t, "4", "unstarted, ", "true")
		}, []string{"remove 4", "join"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newReplica(t)
			tc.prepare(t, m)
			documents := m.run(t, controlPlaneUserdata+replicaUserdata+initializeUserdata)
			assert.Equal(t, tc.want, m.changes())
			assert.FileExists(t, filepath.Join(m.dir, "run/nstance-joined"))
			assert.Equal(t, "received etcd-ca.key\n", m.read(t, "etc/kubernetes/pki/etcd/ca.key"))
			assert.Equal(t, "received sa.pub\n", m.read(t, "etc/kubernetes/pki/sa.pub"))
			if slices.Contains(tc.want, "join") {
				join := documents["JoinConfiguration"]
				m.expectRegistration(t, join)
				assert.Equal(t, object{"localAPIEndpoint": object{"advertiseAddress": "172.17.0.5", "bindPort": 6443.0}}, join["controlPlane"])
			}
		})
	}
}

// A machine changes nothing until a majority of the other members is healthy, and while etcd has one more
// member, which a rotation on another shard has added.
func TestUserdataOfAReplicatedControlPlaneWait(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*testing.T, *machine)
		want    []string
	}{
		"for a majority": {func(t *testing.T, m *machine) {
			m.remove(t, "reachable/172.17.0.1")
			m.write(t, "unhealthy/172.17.0.2", "")
		}, []string{"remove 1", "join"}},
		"for a rotation": {func(t *testing.T, m *machine) {
			m.addMember(t, "4", "started, cpl4", "false")
			m.write(t, "nodes/cpl4", "self-b")
			m.write(t, "reachable/172.17.0.4", "")
			m.write(t, "leaves/172.17.0.1", "")
		}, []string{"join", "leader 5", "remove 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newReplica(t)
			tc.prepare(t, m)
			m.run(t, controlPlaneUserdata+replicaUserdata+initializeUserdata)
			assert.Equal(t, tc.want, m.changes())
			pauses := 0
			for _, call := range m.ran {
				if strings.Contains(call, " member remove ") || strings.HasPrefix(call, "kubeadm join") {
					break
				}
				if call == "sleep 1" {
					pauses++
				}
			}
			assert.Equal(t, 8, pauses, "pauses before the first change")
		})
	}
}

func TestReplicatedConfigurationsAreValid(t *testing.T) {
	c := newCluster(t)
	c.options.Replicated = true
	for i, s := range c.shards {
		path, err := c.writeConfiguration(s)
		require.NoError(t, err)
		source, err := config.ReadFile(path)
		require.NoError(t, err)
		parsed, err := source.ParseFor(s.id, provider.Registry{docker.Name: docker.ReadOptions})
		require.NoError(t, err)
		require.NoError(t, source.Reject(provision.Validate(parsed)))
		assert.Empty(t, parsed.Warnings())
		assert.Contains(t, parsed.Groups["default"], ControlPlaneGroup)
		assert.Equal(t, i == 0, c.initializeBefore(s) != "0")
	}
}
