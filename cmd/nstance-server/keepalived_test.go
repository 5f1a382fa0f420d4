// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// keepalivedBlock is a block of a configuration of keepalived.
type keepalivedBlock struct {
	// values are the values of the keywords, and lines the lines without a keyword.
	values map[string]string
	lines  []string
	blocks map[string]*keepalivedBlock
}

// keepalivedKeywords are the keywords of each block, those with a block in capital letters
// (https://www.keepalived.org/manpage.html).
var keepalivedKeywords = map[string]string{
	"":                  "GLOBAL_DEFS VRRP_SCRIPT VRRP_INSTANCE",
	"global_defs":       "enable_script_security script_user",
	"vrrp_script":       "script interval timeout rise fall weight",
	"vrrp_instance":     "state priority virtual_router_id advert_int interface unicast_src_ip UNICAST_PEER VIRTUAL_IPADDRESS TRACK_SCRIPT",
	"unicast_peer":      "",
	"virtual_ipaddress": "",
	"track_script":      "",
}

// keepalived parses manifests/server/keepalived.conf.
func keepalived(t *testing.T) *keepalivedBlock {
	t.Helper()
	newBlock := func() *keepalivedBlock {
		return &keepalivedBlock{values: map[string]string{}, blocks: map[string]*keepalivedBlock{}}
	}
	stack, names := []*keepalivedBlock{newBlock()}, []string{""}
	for _, line := range lines(t, "server/keepalived.conf") {
		line = strings.TrimSpace(line)
		current, keywords := stack[len(stack)-1], strings.Fields(keepalivedKeywords[names[len(names)-1]])
		keyword, value, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "#") || line == "":
		case line == "}":
			require.Greater(t, len(stack), 1, "a brace too many")
			stack, names = stack[:len(stack)-1], names[:len(names)-1]
		case strings.HasSuffix(line, "{"):
			require.Contains(t, keywords, strings.ToUpper(keyword))
			block := newBlock()
			current.blocks[strings.TrimSpace(strings.TrimSuffix(line, "{"))] = block
			stack, names = append(stack, block), append(names, keyword)
		case len(keywords) == 0:
			current.lines = append(current.lines, line)
		default:
			require.Contains(t, keywords, keyword)
			require.NotContains(t, current.values, keyword)
			current.values[keyword] = value
		}
	}
	require.Len(t, stack, 1, "a brace is missing")
	return stack[0]
}

// All machines have the same priority, and the script raises the priority of the machine whose server
// leads.
func TestKeepalivedFollowsTheLeader(t *testing.T) {
	configuration := keepalived(t)
	script, instance := configuration.blocks["vrrp_script nstance_leader"], configuration.blocks["vrrp_instance nstance_pve_a"]
	require.NotNil(t, script)
	require.NotNil(t, instance)
	assert.Equal(t, []string{"nstance_leader"}, instance.blocks["track_script"].lines)
	assert.Equal(t, "BACKUP", instance.values["state"])
	number := func(block *keepalivedBlock, keyword string) int {
		value, err := strconv.Atoi(block.values[keyword])
		require.NoError(t, err, keyword)
		return value
	}
	// Without a weight a machine whose script fails would have no address at all. VRRP has 255
	// priorities.
	assert.Positive(t, number(script, "weight"))
	assert.Less(t, number(instance, "priority")+number(script, "weight"), 255)
	// An unanswered request counts as failed.
	assert.Greater(t, number(script, "timeout"), 2)
	assert.Contains(t, script.values["script"], " --max-time 2 ")
	assert.Len(t, instance.blocks["virtual_ipaddress"].lines, 1)
	assert.NotContains(t, instance.blocks["unicast_peer"].lines, instance.values["unicast_src_ip"])
	for _, port := range deployment(t).Spec.Template.Spec.Containers[0].Ports {
		if port.Name == "election" {
			assert.Contains(t, script.values["script"], "https://127.0.0.1:"+strconv.Itoa(int(port.ContainerPort))+"/leader/health")
		}
	}
}

// The script succeeds exactly if the server leads. It needs curl.
func TestKeepalivedScript(t *testing.T) {
	text := strings.Trim(keepalived(t).blocks["vrrp_script nstance_leader"].values["script"], `"`)
	words := strings.Fields(text)
	program, err := exec.LookPath(filepath.Base(words[0]))
	if err != nil {
		return // TestKeepalivedFollowsTheLeader checks what it can
	}
	var leads atomic.Bool
	leads.Store(true)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/leader/health" || !leads.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	run := func() error {
		args := append([]string{}, words[1:len(words)-1]...)
		url := regexp.MustCompile("^https://127.0.0.1:[0-9]+").ReplaceAllString(words[len(words)-1], server.URL)
		return exec.CommandContext(t.Context(), program, append(args, url)...).Run()
	}
	require.NoError(t, run())
	leads.Store(false)
	_, failed := errors.AsType[*exec.ExitError](run())
	assert.True(t, failed, "the server stands by")
	server.Close()
	_, failed = errors.AsType[*exec.ExitError](run())
	assert.True(t, failed, "the server does not run")
}
