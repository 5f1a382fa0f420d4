// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// launchOne launches a machine.
func launchOne(t *testing.T, api *API, r cloud.Request) folder {
	t.Helper()
	m, err := api.Launch(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, instance.Running, m.State, m.Reason)
	return api.folders.of(m.ID)
}

// find returns the machine of a folder, which must exist.
func find(t *testing.T, api *API, f folder) cloud.VM {
	t.Helper()
	m, found, err := api.Find(t.Context(), f.id)
	require.NoError(t, err)
	require.True(t, found)
	return m
}

// process returns the id of the QEMU of a folder.
func process(t *testing.T, f folder) int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, path := range paths {
		if pid, err := strconv.Atoi(filepath.Base(path)); err == nil && f.runs(pid) {
			return pid
		}
	}
	t.Fatalf("no QEMU runs in %s", f.path)
	return 0
}

func signal(t *testing.T, f folder, s syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(process(t, f), s))
}

func TestStates(t *testing.T) {
	options := testOptions(t, politeGuest)
	api := NewAPI(options, testShard)
	expect := func(f folder, state instance.State, reason string) {
		t.Helper()
		await(t, fmt.Sprintf("state %v because %q", state, reason), func() bool {
			m := find(t, api, f)
			return m.State == state && strings.Contains(m.Reason, reason)
		})
	}
	f := launchOne(t, api, request(t))

	require.NoError(t, f.execute(t.Context(), "stop", nil))
	expect(f, instance.Impaired, "paused")
	require.NoError(t, f.execute(t.Context(), "cont", nil))
	expect(f, instance.Running, "")

	// A host that is busy for a moment is no reason to replace its machines.
	signal(t, f, syscall.SIGSTOP)
	expect(f, instance.Running, "")
	api.silent[f.id] = time.Now().Add(-2 * silenceTimeout)
	expect(f, instance.Impaired, "has not answered for")
	signal(t, f, syscall.SIGCONT)
	expect(f, instance.Running, "")
	assert.Empty(t, api.silent)

	await(t, "the guest has booted and shuts down", func() bool {
		require.NoError(t, f.execute(t.Context(), "system_powerdown", nil))
		return find(t, api, f).State == instance.Stopped
	})
	expect(f, instance.Stopped, "the guest has shut down")

	signal(t, f, syscall.SIGKILL)
	expect(f, instance.Failed, "QEMU has exited")
	require.NoError(t, f.writeJSON(launchedFile, launch{BootID: "of yesterday"}))
	expect(f, instance.Stopped, "the host was restarted")

	// A machine that does not run keeps its folder, and is not started again.
	again := request(t)
	again.ID = f.id
	m, err := api.Launch(t.Context(), again)
	require.NoError(t, err)
	assert.Equal(t, instance.Stopped, m.State)
	assert.Zero(t, running(t, options.Dir), "processes")
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{m}))
	awaitNothing(t, api)
}

func TestStateOf(t *testing.T) {
	for status, want := range map[string]instance.State{
		"running": instance.Running, "prelaunch": instance.Pending, "inmigrate": instance.Pending,
		"shutdown": instance.Stopped, "guest-panicked": instance.Failed, "internal-error": instance.Failed,
		"paused": instance.Impaired, "io-error": instance.Impaired, "suspended": instance.Impaired, "watchdog": instance.Impaired,
	} {
		state, reason := stateOf(status)
		assert.Equal(t, want, state, status)
		assert.Equal(t, want == instance.Running || want == instance.Pending, reason == "", "reason of %s: %q", status, reason)
	}
}

func TestGuestShutsDownBeforeItsMachineIsTurnedOff(t *testing.T) {
	options := testOptions(t, politeGuest)
	options.ShutdownGrace = 24 * time.Hour
	api := NewAPI(options, testShard)
	f := launchOne(t, api, request(t))
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{{ID: f.id}}))
	// The boot loader ignores the button; the guest does not.
	awaitNothing(t, api)
}

func TestGuestThatDoesNotShutDownIsTurnedOff(t *testing.T) {
	options := testOptions(t, deafGuest)
	options.ShutdownGrace = 24 * time.Hour
	api := NewAPI(options, testShard)
	f := launchOne(t, api, request(t))
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{{ID: f.id}}))
	for range 3 {
		assert.Equal(t, instance.Terminating, find(t, api, f).State)
	}
	require.NoError(t, f.writeJSON(deletionFile, deletion{RequestedAt: time.Now().Add(-options.ShutdownGrace)}))
	awaitNothing(t, api)
}

func TestQEMUThatHangsIsKilled(t *testing.T) {
	api := NewAPI(testOptions(t, deafGuest), testShard)
	f := launchOne(t, api, request(t))
	signal(t, f, syscall.SIGSTOP)
	require.NoError(t, f.writeJSON(deletionFile, deletion{RequestedAt: time.Now().Add(-time.Hour)}))
	awaitNothing(t, api)
}

func TestOnlyQEMUIsKilled(t *testing.T) {
	api := NewAPI(testOptions(t, deafGuest), testShard)
	f, other := launchOne(t, api, request(t)), launchOne(t, api, request(t))
	// An administrator reads the logs in the folder.
	shell := exec.Command("sleep", "3600")
	shell.Dir = f.path
	require.NoError(t, shell.Start())
	exited := make(chan error, 1)
	go func() { exited <- shell.Wait() }()
	require.NoError(t, f.kill())
	await(t, "QEMU is killed", func() bool { return find(t, api, f).State == instance.Failed })
	// If kill had killed this process too, it would not end by this signal.
	require.NoError(t, shell.Process.Signal(syscall.SIGTERM))
	assert.ErrorContains(t, <-exited, "terminated")
	assert.Equal(t, instance.Running, find(t, api, other).State)
}

func TestOtherUsersSeeNoSecrets(t *testing.T) {
	t.Setenv("NSTANCE_ENCRYPTION_KEY", "key of the cluster")
	api, r := NewAPI(testOptions(t, deafGuest), testShard), request(t)
	f := launchOne(t, api, r)
	encoded := base64.StdEncoding.EncodeToString(r.Userdata)
	pid := process(t, f)
	for _, name := range []string{"cmdline", "environ"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		require.NoError(t, err)
		for _, secret := range []string{string(r.Userdata), encoded, "key of the cluster"} {
			assert.NotContains(t, string(data), secret, name)
		}
	}
	session, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	assert.Equal(t, pid, session, "QEMU has a session of its own")
	err = filepath.Walk(api.options.Dir, func(path string, info os.FileInfo, err error) error {
		require.NoError(t, err)
		if path != api.options.Dir && info.Mode().Type() != os.ModeSocket && filepath.Base(path) != serialFile && filepath.Base(path) != diskFile {
			assert.Zero(t, info.Mode().Perm()&0o077, "%s has mode %v", path, info.Mode())
		}
		return nil
	})
	require.NoError(t, err)
	identity, err := os.ReadFile(f.file(identityFile))
	require.NoError(t, err)
	assert.NotContains(t, string(identity), string(r.Userdata))
}

// expectRejection expects that a launch is rejected and leaves nothing behind.
func expectRejection(t *testing.T, api *API, r cloud.Request, scope cloud.Scope, text string) {
	t.Helper()
	before := entries(t, api)
	_, err := api.Launch(t.Context(), r)
	rejection, ok := errors.AsType[*cloud.Rejection](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, scope, rejection.Scope)
	assert.Contains(t, err.Error(), text)
	assert.Equal(t, before, entries(t, api))
}

func TestRejections(t *testing.T) {
	group := cloud.Scope{Group: request(t).Group}
	all := cloud.Scope{Group: group.Group, Type: testType.Name, Subnet: "subnet"}
	huge := testType
	huge.Name, huge.Memory = "huge", resource.MustParse("64Ti")
	for _, tc := range []struct {
		name   string
		change func(*Options, *cloud.Request)
		scope  cloud.Scope
		text   string
	}{
		{"the image is missing", func(_ *Options, r *cloud.Request) { r.Args = map[string]any{"image": "/no/image"} }, group, "/no/image: no such file"},
		{"the image is damaged", func(o *Options, _ *cloud.Request) { truncateQcow(t, o) }, group, "create the disk"},
		{"the arguments are invalid", func(_ *Options, r *cloud.Request) { r.Args = map[string]any{"image": "image"} }, group, "absolute path"},
		{"QEMU is not installed", func(o *Options, _ *cloud.Request) { o.Binary = "qemu-system-none" }, cloud.Scope{}, "qemu-system-none"},
		{"QEMU has no such machine", func(o *Options, _ *cloud.Request) { o.Machine = "q37" }, all, "unsupported machine type"},
		{"there is no bridge", func(_ *Options, r *cloud.Request) { r.Subnet = "unplugged" }, cloud.Scope{Subnet: "unplugged"}, "bridge"},
		{"there is no memory", func(_ *Options, r *cloud.Request) { r.Type = huge }, cloud.Scope{Type: "huge", Subnet: "subnet"}, "memory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			options, r := testOptions(t, deafGuest), request(t)
			tc.change(options, &r)
			expectRejection(t, NewAPI(options, testShard), r, tc.scope, tc.text)
		})
	}
	kvm, ok := errors.AsType[*cloud.Rejection](rejectOutput(request(t).Spec, "Could not access KVM kernel module: No such file or directory"))
	require.True(t, ok)
	assert.Equal(t, cloud.Scope{}, kvm.Scope, "without KVM no machine starts")
}

// truncateQcow makes the image a header without an image.
func truncateQcow(t *testing.T, o *Options) {
	t.Helper()
	o.Boot.Image = filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(o.Boot.Image, append([]byte("QFI\xfb"), make([]byte, 100)...), 0o600))
}

// TestAFolderThatCannotBeRead hides no other folder. It is left alone, and counts in its subnet.
// Without the file system of the folders there is no list.
func TestAFolderThatCannotBeRead(t *testing.T) {
	options := testOptions(t, deafGuest)
	api := NewAPI(options, testShard)
	f := launchOne(t, api, request(t))
	list, err := api.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)

	// The folder of another shard's machine was copied.
	identity, err := os.ReadFile(f.file(identityFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(f.file(identityFile), []byte(strings.ReplaceAll(string(identity), `"a"`, `"b"`)), 0o600))
	unidentified := func(reason string) {
		t.Helper()
		list, err := api.List(t.Context())
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.Contains(t, list[0].Unidentified, reason)
		assert.Equal(t, f.id, list[0].ID)
		assert.NotEmpty(t, api.Terminate(t.Context(), list))
		used, err := api.used("another subnet", "")
		require.NoError(t, err)
		assert.Equal(t, 1, used.instances)
	}
	unidentified("shard b")
	require.NoError(t, os.WriteFile(f.file(identityFile), identity[:10], 0o600))
	unidentified(identityFile)
	require.NoError(t, os.WriteFile(f.file(identityFile), identity, 0o600))
	launched, err := os.ReadFile(f.file(launchedFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(f.file(launchedFile), nil, 0o600))
	list, err = api.List(t.Context())
	require.NoError(t, err)
	assert.Contains(t, list[0].Unidentified, launchedFile)
	require.NoError(t, os.WriteFile(f.file(launchedFile), launched, 0o600))

	// The file system of the folder is not mounted.
	moved := options.Dir + ".moved"
	require.NoError(t, os.Rename(options.Dir, moved))
	_, err = api.List(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.Rename(moved, options.Dir))
	list, err = api.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, list, 1)
}

func TestSerialLogIsBounded(t *testing.T) {
	api := NewAPI(testOptions(t, deafGuest), testShard)
	f := launchOne(t, api, request(t))
	require.NoError(t, os.Truncate(f.file(serialFile), maxSerialLog+1))
	find(t, api, f)
	info, err := os.Stat(f.file(serialFile))
	require.NoError(t, err)
	assert.Zero(t, info.Size())
}

func TestLaunchBeginsWithAnEmptyFolder(t *testing.T) {
	api, r := NewAPI(testOptions(t, deafGuest), testShard), request(t)
	f := api.folders.of(r.ID)
	// A server was killed within a write, and another one after a deletion was requested.
	require.NoError(t, os.MkdirAll(f.path, 0o700))
	require.NoError(t, os.WriteFile(f.file(smbiosFile+".1"), []byte("secret"), 0o600))
	require.NoError(t, f.writeJSON(deletionFile, deletion{RequestedAt: time.Now()}))
	launchOne(t, api, r)
	expectOneMachine(t, api, r.ID)
	files, err := os.ReadDir(f.path)
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		names = append(names, file.Name())
	}
	assert.ElementsMatch(t, []string{lockFile, identityFile, launchedFile, diskFile, seedFile, smbiosFile, socketFile, serialFile, logFile}, names)
}

func TestRoom(t *testing.T) {
	options := testOptions(t, deafGuest)
	options.Subnets["memory"] = Subnet{Memory: resource.MustParse("96Mi")}
	options.Subnets["both"] = Subnet{Memory: resource.MustParse("96Mi"), Instances: ptr.To[int32](1)}
	api := NewAPI(options, testShard)
	expect := func(subnet string, want int) {
		t.Helper()
		room, err := api.Room(t.Context(), subnet)
		require.NoError(t, err)
		assert.Equal(t, want, room)
	}
	in := func(subnet string, instanceType provider.InstanceType) cloud.Request {
		r := request(t)
		r.Subnet, r.Type = subnet, instanceType
		return r
	}
	expect("subnet", math.MaxInt32)
	expect("memory", 3)
	expect("both", 1)
	large := launchOne(t, api, in("memory", largeType))
	launchOne(t, api, in("both", testType))
	expect("memory", 1)
	expect("both", 0)
	expectRejection(t, api, in("memory", largeType), cloud.Scope{Type: "large", Subnet: "memory"}, "32 MiB are left")
	expectRejection(t, api, in("both", testType), cloud.Scope{Subnet: "both"}, "room for 1 instances")
	assert.Len(t, entries(t, api), 2)

	// The repetition of a launch needs no more room.
	again := in("memory", largeType)
	again.ID = large.id
	launchOne(t, api, again)
	expect("memory", 1)

	// A machine needs room until it is deleted.
	signal(t, large, syscall.SIGKILL)
	await(t, "QEMU has exited", func() bool { return find(t, api, large).State == instance.Failed })
	expect("memory", 1)
	require.Empty(t, api.Terminate(t.Context(), []cloud.VM{{ID: large.id}}))
	await(t, "the machine is deleted", func() bool {
		list, err := api.List(t.Context())
		require.NoError(t, err)
		return len(list) == 1
	})
	expect("memory", 3)
}

func TestLaunchesAtOnceShareTheRoom(t *testing.T) {
	api := NewAPI(testOptions(t, deafGuest), testShard)
	const launches = 6
	results := make(chan error, launches)
	for range launches {
		r := request(t)
		r.Subnet = "two"
		go func() {
			_, err := api.Launch(t.Context(), r)
			results <- err
		}()
	}
	launched := 0
	for range launches {
		err := <-results
		if err == nil {
			launched++
			continue
		}
		assert.ErrorContains(t, err, "room for 2 instances")
	}
	assert.Equal(t, 2, launched)
	assert.Len(t, entries(t, api), 2)
}
